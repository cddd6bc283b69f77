// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/gemm.h"

#include <cblas.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace spillway::trainer {
namespace {

// Parts begin at multiples of this, the width of BLAS's inner kernels.
constexpr int64_t kGrain = 16;

struct Grid {
  int64_t down = 1;    // parts of the rows
  int64_t across = 1;  // parts of the columns
};

// The relative cost of packing a row of a and a column of b. Each part packs its own rows of a and
// columns of b before it multiplies. BLAS, which gets the transposed problem, takes about 8/5 as
// long for an element of b as for one of a. The best grid has the lowest packing cost.
constexpr double kPackRow = 5;
constexpr double kPackColumn = 8;

Grid ChooseGrid(int64_t rows, int64_t columns, int64_t threads) {
  Grid best;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t down = 1; down <= threads; ++down) {
    if (threads % down != 0) continue;
    const int64_t across = threads / down;
    const double packing = kPackRow * static_cast<double>(std::max(rows / down, kGrain)) +
                           kPackColumn * static_cast<double>(std::max(columns / across, kGrain));
    if (packing < least) {
      least = packing;
      best = {down, across};
    }
  }
  return best;
}

// Returns the start of part `index` when [0, n) is divided into `parts`.
int64_t PartStart(int64_t n, int64_t parts, int64_t index) {
  const int64_t grains = (n + kGrain - 1) / kGrain;
  return std::min(n, grains * index / parts * kGrain);
}

constexpr const char* kLibrary = "libopenblas.so.0";
// OpenBLAS packs into one buffer per thread: 128 MiB of addresses on x86-64, of which it touches
// only what it needs. The library itself takes 40 MiB.
constexpr size_t kBufferBytes = size_t{128} << 20;
constexpr size_t kLibraryBytes = size_t{64} << 20;

decltype(&cblas_sgemm) sgemm = nullptr;  // set by LoadBlas

// Whether the process may map that much memory (ulimit -v, ulimit -d).
bool MayHave(size_t bytes) {
  void* const got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return false;
  munmap(got, bytes);
  return true;
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::Status NotLoaded(const std::string& why) {
  const auto names = [&](int error) { return absl::StrContains(why, std::strerror(error)); };
  const char* const advice = names(EMFILE)   ? "raise the limit of open files ('ulimit -n')"
                             : names(ENFILE) ? "close other programs' files"
                             : names(ENOMEM) ? "raise the limits of memory ('ulimit -v', "
                                               "'ulimit -d')"
                                             : "install it (Debian: libopenblas0)";
  return absl::UnimplementedError(absl::StrFormat("cannot load OpenBLAS: %s; %s", why, advice));
}

absl::Status Load(int num_threads) {
  const size_t bytes = kLibraryBytes + kBufferBytes * static_cast<size_t>(num_threads);
  if (!MayHave(bytes)) {
    return absl::UnimplementedError(absl::StrFormat(
        "OpenBLAS needs %d MiB of addresses for %d threads, and this process may not have them: "
        "raise its limits ('ulimit -v', 'ulimit -d') or use fewer --threads",
        bytes >> 20, num_threads));
  }
  // OpenBLAS reads this when it is loaded. Without it, it would start a thread for each core.
  setenv("OPENBLAS_NUM_THREADS", "1", /*overwrite=*/1);
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  void* (*allocate)(int) = nullptr;
  void (*release)(void*) = nullptr;
  if (library == nullptr || !Find(library, "cblas_sgemm", &sgemm)) return NotLoaded(dlerror());
  // OpenBLAS keeps a buffer once it is allocated. A build that does not export these two functions
  // allocates its buffers during the first products.
  if (!Find(library, "blas_memory_alloc", &allocate) ||
      !Find(library, "blas_memory_free", &release)) {
    return absl::OkStatus();
  }
  std::vector<void*> buffers(static_cast<size_t>(num_threads));
  for (void*& buffer : buffers) buffer = allocate(0);
  for (void* const buffer : buffers) release(buffer);
  return absl::OkStatus();
}

const float* SkipRows(const MatrixView& a, int64_t rows) {
  return a.data + (a.transposed ? rows : rows * a.stride);
}

const float* SkipColumns(const MatrixView& b, int64_t columns) {
  return b.data + (b.transposed ? columns * b.stride : columns);
}

}  // namespace

absl::Status LoadBlas(int num_threads) {
  static const auto* const loaded = new absl::Status(Load(num_threads));
  return *loaded;
}

void Multiply(const ProductShape& shape, const MatrixView& a, const MatrixView& b, Into into,
              float* c, int64_t c_stride) {
  sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
        b.transposed ? CblasTrans : CblasNoTrans, static_cast<int>(shape.rows),
        static_cast<int>(shape.columns), static_cast<int>(shape.inner), 1.0f, a.data,
        static_cast<int>(a.stride), b.data, static_cast<int>(b.stride),
        into == Into::kAdd ? 1.0f : 0.0f, c, static_cast<int>(c_stride));
}

void ParallelMultiply(ThreadPool* pool, const ProductShape& shape, const MatrixView& a,
                      const MatrixView& b, Into into, float* c, int64_t c_stride) {
  const Grid grid = ChooseGrid(shape.rows, shape.columns, pool->num_threads());
  pool->ParallelFor(grid.down * grid.across, [&](int64_t part) {
    const int64_t top = PartStart(shape.rows, grid.down, part / grid.across);
    const int64_t bottom = PartStart(shape.rows, grid.down, part / grid.across + 1);
    const int64_t left = PartStart(shape.columns, grid.across, part % grid.across);
    const int64_t right = PartStart(shape.columns, grid.across, part % grid.across + 1);
    if (top == bottom || left == right) return;
    Multiply({bottom - top, right - left, shape.inner}, {SkipRows(a, top), a.stride, a.transposed},
             {SkipColumns(b, left), b.stride, b.transposed}, into, c + top * c_stride + left,
             c_stride);
  });
}

}  // namespace spillway::trainer
