"""The native audio library: a small C library on libav that converts audio to 16-bit PCM."""
