"""Every API has a handler, every handler an API, and their messages are the API's."""

from __future__ import annotations

import inspect
from pkgutil import iter_modules
from types import NoneType, UnionType
from typing import get_args, get_type_hints

import pytest

from moldau.broker import handlers
from moldau.broker.broker import Broker
from moldau.broker.dispatch import AWAITED, REPLYING, handler_of
from moldau.broker.server.call import Call, RequestRoute
from moldau.broker.wire import messages
from moldau.broker.wire.apis import APIS, NOT_SERVED, Api


def test_every_api_has_one_handler_and_every_handler_an_api() -> None:
    assert set(AWAITED) | set(REPLYING) == set(APIS)
    assert not set(AWAITED) & set(REPLYING)
    names = {api.module_name for api in APIS.values()}
    listed = list(iter_modules(handlers.__path__))
    assert {each.name for each in listed if not each.ispkg} == names
    assert {each.name for each in listed if each.ispkg} == {"details", "private"}
    declared = names | {api.module_name for api in NOT_SERVED}
    assert {each.name for each in iter_modules(messages.__path__)} == declared


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_a_handler_takes_the_request_of_its_api_and_returns_its_response(api: Api) -> None:
    handler = handler_of(api)
    hints = get_type_hints(handler)
    returned = hints.pop("return")
    assert list(hints.values()) == [Broker, api.request, Call]
    if inspect.iscoroutinefunction(handler):
        assert returned is api.response
        return
    kinds = get_args(returned) if isinstance(returned, UnionType) else (returned,)
    assert all(kind is NoneType or issubclass(kind, RequestRoute) for kind in kinds)
