"""The compiled core on aarch64, emulated: `make test-aarch64`.

emulator    Debian's Python for arm64 in a folder, and a command that runs it under qemu
run         builds the core for it and runs tests
"""
