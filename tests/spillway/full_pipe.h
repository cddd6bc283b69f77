// SPDX-License-Identifier: Apache-2.0
//
// A pipe that holds a command where it writes to it.

#ifndef SPILLWAY_TESTS_SPILLWAY_FULL_PIPE_H_
#define SPILLWAY_TESTS_SPILLWAY_FULL_PIPE_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace spillway::test {

// A named pipe that is full, so that a write to it blocks. Nothing is read from it.
class FullPipe {
 public:
  explicit FullPipe(const std::string& path) {
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    end_ = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    const std::string piece(4096, 'x');
    while (write(end_, piece.data(), piece.size()) > 0) {
    }
    EXPECT_EQ(errno, EAGAIN);
  }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;
  ~FullPipe() { Close(); }
  // From here on, a write to the pipe fails.
  void Close() {
    if (end_ >= 0) close(std::exchange(end_, -1));
  }

 private:
  int end_ = -1;
};

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_FULL_PIPE_H_
