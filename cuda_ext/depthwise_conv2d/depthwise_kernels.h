#pragma once
#include "depthwise.cuh"
namespace depthwise {
template <typename T>
void convolve_small(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                    cudaStream_t stream);
template <typename T>
int blocks_small(const Shape& shape);
template <typename T>
void differentiate_small(const T* windowed, const T* centred, const T* weight, T* image_gradient, float* parts,
                         const Shape& shape, int padding, bool flip, cudaStream_t stream);
template <typename T>
void convolve_large(const T* x, const T* weight, T* out, const Shape& shape, int padding, bool flip,
                    cudaStream_t stream);
template <typename T>
int blocks_large(const Shape& shape);
template <typename T>
void differentiate_large(const T* g, const T* x, float* parts, const Shape& shape, int padding, cudaStream_t stream);
template <typename T>
void convolve_plain(const T* x, const T* weight, T* out, const Shape& shape, int padding, cudaStream_t stream);
template <typename T>
void image_gradient_plain(const T* g, const T* weight, T* gradient, const Shape& shape, int padding, bool border_only,
                          cudaStream_t stream);
template <typename T>
void filter_gradient_plain(const T* g, const T* x, T* gradient, const Shape& shape, int padding, cudaStream_t stream);
template <typename T>
void add_parts(const float* parts, T* sum, int64_t size, int count, cudaStream_t stream);
}  // namespace depthwise
