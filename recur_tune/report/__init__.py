"""Search directory -> SearchView -> figures -> a page and pictures to look at and to send."""
