// SPDX-License-Identifier: Apache-2.0
//
// An array that grows at its end and never moves an element, so that elements can be read while
// others are added.

#ifndef SPILLWAY_BASE_STABLE_ARRAY_H_
#define SPILLWAY_BASE_STABLE_ARRAY_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>

namespace spillway::base {

// One thread at a time may add elements. Other threads may use the elements below a size that they
// have read. Memory is allocated in pieces and not touched before elements are constructed in it.
template <class T>
class StableArray {
 public:
  StableArray() = default;
  StableArray(const StableArray&) = delete;
  StableArray& operator=(const StableArray&) = delete;
  ~StableArray() {
    for (size_t i = 0; i < size(); ++i) std::destroy_at(&(*this)[i]);
    for (size_t piece = 0; piece < kPieces && pieces_[piece] != nullptr; ++piece)
      std::allocator<T>().deallocate(pieces_[piece], kFirst << piece);
  }

  size_t size() const { return size_.load(std::memory_order_acquire); }
  T& operator[](size_t i) { return pieces_[PieceOf(i)][i - BeginOf(PieceOf(i))]; }
  const T& operator[](size_t i) const { return pieces_[PieceOf(i)][i - BeginOf(PieceOf(i))]; }

  // The new element is complete before another thread can read the new size.
  template <class... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    const size_t i = size_.load(std::memory_order_relaxed);
    T*& piece = pieces_[PieceOf(i)];
    if (piece == nullptr) piece = std::allocator<T>().allocate(kFirst << PieceOf(i));
    T* const made =
        std::construct_at(&piece[i - BeginOf(PieceOf(i))], std::forward<Arguments>(arguments)...);
    size_.store(i + 1, std::memory_order_release);
    return *made;
  }

 private:
  // Each piece has kFirst elements more than all pieces before it have together.
  static constexpr size_t kFirst = 64;
  static constexpr size_t kPieces = 48;
  static size_t PieceOf(size_t i) {
    return static_cast<size_t>(std::bit_width(i / kFirst + 1)) - 1;
  }
  static size_t BeginOf(size_t piece) { return kFirst * ((size_t{1} << piece) - 1); }

  std::array<T*, kPieces> pieces_ = {};
  std::atomic<size_t> size_ = 0;
};

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_STABLE_ARRAY_H_
