// SPDX-License-Identifier: Apache-2.0
//
// A priority queue that keeps its memory.

#ifndef SPILLWAY_BASE_HEAP_H_
#define SPILLWAY_BASE_HEAP_H_

#include <cstddef>
#include <functional>
#include <queue>
#include <vector>

namespace spillway::base {

// The least element is at the top. Memory that is reserved is not touched before it is used. So a
// queue that may become long, and is filled under a lock, need not move its elements there.
template <class T>
class Heap : public std::priority_queue<T, std::vector<T>, std::greater<>> {
 public:
  void Reserve(size_t most) { this->c.reserve(most); }
  void Clear() { this->c.clear(); }
};

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_HEAP_H_
