// 2D convolution by Fourier transforms of tiles: what is launched.

#include "conv2d_fft.cuh"

#include <algorithm>
#include <cstdlib>

namespace cuda_ext::conv2d {
namespace {

// Where all rows of an image begin on 32 bytes, those of a tile do too if that costs few results.
constexpr int sector = 32;
constexpr double tolerated_loss = 0.05;

template <typename T, int SY, int SX, int groups = 1>
Cover cover_of(const Call<T>& call) {
  using Own = Tile<SY, SX, groups>;
  Cover cover{call.height, call.width, call.size / 2, call.padding};
  cover.step_rows = Own::rows - call.size + 1;
  cover.step_columns = Own::columns - call.size + 1;
  constexpr int numbers = sector / sizeof(T);
  const int shift = (numbers - cover.half % numbers) % numbers;
  const int aligned = (cover.step_columns - shift) / numbers * numbers;
  if (call.width % numbers == 0 && aligned >= (1 - tolerated_loss) * cover.step_columns) {
    cover.shift = shift;
    cover.step_columns = aligned;
  }
  cover.across = (call.width + cover.step_columns - 1) / cover.step_columns;
  const int64_t down = (int64_t{call.height} + cover.step_rows - 1) / cover.step_rows;
  STD_TORCH_CHECK(call.count * down * cover.across < int64_t{1} << 31, "conv2d: more than 2^31 tiles, got ",
                  call.count, " images of ", call.height, " x ", call.width);
  cover.tiles = static_cast<int>(down * cover.across);
  cover.pairs = (cover.tiles + 1) / 2;
  return cover;
}

template <typename T, int SY, int SX, int groups = 1>
void launch_tiles(const Call<T>& call, const Cover& cover, float* spectrum) {
  using Own = Tile<SY, SX, groups>;
  static_assert(2 * Own::rows * Own::columns <= most_of_a_spectrum);
  transform_filter<T><<<Own::rows, 128, 0, call.stream>>>(call.weight, reinterpret_cast<float2*>(spectrum), call.size,
                                                         Own::rows, Own::columns);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
  launch_early(&convolve_by_fft<T, SY, SX, groups>, static_cast<unsigned>(call.count * cover.pairs), Own::threads, Own::bytes,
               call.stream, call.images, reinterpret_cast<const float4*>(spectrum), call.results, cover);
}

}  // namespace

template <typename T, int SY, int SX, int groups = 1>
void launch_tiles(const Call<T>& call, float* spectrum) {
  launch_tiles<T, SY, SX, groups>(call, cover_of<T, SY, SX, groups>(call), spectrum);
}

template <typename T>
void launch_fft(const Call<T>& call, float* spectrum) {
#ifdef CUDA_EXT_TUNE
  if (const char* wanted = std::getenv("FFT_TILE")) {
    switch (wanted[0]) {
      case 'a': return launch_tiles<T, 16, 16>(call, spectrum);
      case 'b': return launch_tiles<T, 12, 16>(call, spectrum);
      case 'c': return launch_tiles<T, 8, 16>(call, spectrum);
      case 'd': return launch_tiles<T, 16, 8>(call, spectrum);
      case 'e': return launch_tiles<T, 12, 8>(call, spectrum);
      case 'g': return launch_tiles<T, 16, 16, 2>(call, spectrum);
      case 'f': return launch_tiles<T, 8, 8>(call, spectrum);
    }
  }
#endif
  if (Tile<16, 16, 1>::bytes <= shared_memory_of_a_block()) {
    launch_tiles<T, 16, 16>(call, spectrum);
  } else {
    launch_tiles<T, 8, 16>(call, spectrum);
  }
}

template void launch_fft<float>(const Call<float>& call, float* spectrum);
template void launch_fft<__half>(const Call<__half>& call, float* spectrum);
template void launch_fft<__nv_bfloat16>(const Call<__nv_bfloat16>& call, float* spectrum);

}  // namespace cuda_ext::conv2d
