"""The native audio library: 16-bit PCM from audio by a small C library on libav."""
