"""On a real GPU: `make test-gpu`. Without one every test here is skipped, and says so."""
