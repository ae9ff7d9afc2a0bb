// 2D convolution by Fourier transforms of tiles: what is launched.

#include "conv2d_fft.cuh"

namespace cuda_ext::conv2d {
namespace {

// From this filter on tiles of 128 x 128 are faster than of 64 x 64, if there is a pair for each multiprocessor: one
// image of 8192 x 8192 takes 0.334 and 0.334 ms with 17 on an H200, 0.348 and 0.394 with 21, 0.422 and 0.618 with 31.
constexpr int smallest_by_large_tiles = 19;

template <typename T, int S>
Cover cover_of(const Call<T>& call) {
  Cover cover{call.height, call.width, call.size / 2, call.padding, Tile<S>::side - call.size + 1};
  cover.across = (call.width + cover.step - 1) / cover.step;
  const int64_t down = (int64_t{call.height} + cover.step - 1) / cover.step;
  STD_TORCH_CHECK(call.count * down * cover.across < int64_t{1} << 31, "conv2d: more than 2^31 tiles, got ",
                  call.count, " images of ", call.height, " x ", call.width);
  cover.tiles = static_cast<int>(down * cover.across);
  cover.pairs = (cover.tiles + 1) / 2;
  return cover;
}

template <typename T, int S>
void launch_tiles(const Call<T>& call, const Cover& cover, float* spectrum) {
  using Own = Tile<S>;
  static_assert(2 * Own::side * Own::side <= most_of_a_spectrum);
  transform_filter<T><<<Own::side, fft::roots_of, 0, call.stream>>>(call.weight, reinterpret_cast<float2*>(spectrum),
                                                                   call.size, Own::side);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  launch_early(&convolve_by_fft<T, S>, static_cast<unsigned>(call.count * cover.pairs), Own::threads, Own::bytes,
               call.stream, call.images, reinterpret_cast<const float4*>(spectrum), call.results, cover);
}

}  // namespace

template <typename T>
void launch_fft(const Call<T>& call, float* spectrum) {
  const Cover small = cover_of<T, 8>(call), large = cover_of<T, 16>(call);
  if (call.size >= smallest_by_large_tiles && call.count * large.pairs >= multiprocessors() &&
      Tile<16>::bytes <= shared_memory_of_a_block()) {
    launch_tiles<T, 16>(call, large, spectrum);
  } else {
    launch_tiles<T, 8>(call, small, spectrum);
  }
}

template void launch_fft<float>(const Call<float>& call, float* spectrum);
template void launch_fft<__half>(const Call<__half>& call, float* spectrum);
template void launch_fft<__nv_bfloat16>(const Call<__nv_bfloat16>& call, float* spectrum);

}  // namespace cuda_ext::conv2d
