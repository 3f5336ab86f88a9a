"""Raw requests at the edges of the protocol, by what they are about.

Topics are named `golden-<case>...`, so that cases do not meet. A node that exists is asked for at
run time (`seen["node"]`), as clusters number theirs differently.
"""

from tests.golden.cases import (
    cluster,
    configs,
    consumer_groups,
    records,
    topics,
    transactions,
    transactions_seen,
)
from tests.golden.harness import Case

CASES: dict[str, Case] = {
    name.lower(): value
    for module in (
        topics,
        configs,
        consumer_groups,
        records,
        cluster,
        transactions,
        transactions_seen,
    )
    for name, value in vars(module).items()
    if isinstance(value, Case)
}
