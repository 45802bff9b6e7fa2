"""Readers turn what lies on disk into snapshots, one file a source. They judge nothing."""
