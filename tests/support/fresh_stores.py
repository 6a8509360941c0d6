"""Access to stores as in a process that has just started."""

import pytest

from paddlevideo_fast.sources.remote import block_cache, stores


def start_anew(
    monkeypatch: pytest.MonkeyPatch, policy: tuple, kept: block_cache.DiskBlocks | None = None
) -> None:
    """No connection is open, and no block is in memory.

    Args:
        monkeypatch: takes it back behind the test.
        policy: of retries, the values of `RetryPolicy`.
        kept: the blocks on disk.
    """
    monkeypatch.setattr(stores, "_stores", {})
    monkeypatch.setattr(stores, "_policy", stores.RetryPolicy(*policy))
    monkeypatch.setattr(block_cache, "_kept", kept)
    monkeypatch.setattr(block_cache, "_memory", block_cache.MemoryBlocks())
