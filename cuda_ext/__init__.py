"""Operations with kernels of their own, each beside its readable reference in PyTorch."""
