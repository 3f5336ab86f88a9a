"""Operations on a running broker, for commands and console: typed results, no printing."""
