"""Data only: frozen structs that every layer above may read. Units stand in the names (``_s``, ``_mb``)."""
