// SPDX-License-Identifier: Apache-2.0
//
// Tests the line of progress on a terminal: counts, and the bytes of weights that are read.

#include "tools/spillway/command/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/spillway/tiny_model.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/weight_progress.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {
namespace {

using trainer::ParameterShape;

constexpr char kClear[] = "\r\033[K";

// Makes stderr a terminal while the object exists.
class Terminal {
 public:
  Terminal() : reader_(posix_openpt(O_RDWR | O_NOCTTY)), before_(dup(STDERR_FILENO)) {
    setenv("TERM", "xterm", /*overwrite=*/1);
    if (reader_ < 0 || grantpt(reader_) != 0 || unlockpt(reader_) != 0) return;
    const int end = open(ptsname(reader_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (end < 0) return;
    is_open_ = dup2(end, STDERR_FILENO) >= 0;
    close(end);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    if (reader_ >= 0) close(reader_);
  }

  bool is_open() const { return is_open_; }
  // Reads so many bytes, or fewer if no more arrive. A write may arrive in pieces.
  std::string Read(size_t size) const {
    std::string got;
    pollfd ready = {.fd = reader_, .events = POLLIN, .revents = 0};
    while (got.size() < size && poll(&ready, 1, /*timeout=*/10'000) == 1) {
      char buffer[256];
      const ssize_t piece = read(reader_, buffer, std::min(sizeof(buffer), size - got.size()));
      if (piece <= 0) break;
      got.append(buffer, static_cast<size_t>(piece));
    }
    return got;
  }
  // Expects next that the line is cleared and these words are drawn.
  void Expect(absl::string_view line) const {
    const std::string words = absl::StrCat(kClear, line);
    EXPECT_EQ(Read(words.size()), words);
  }

 private:
  int reader_ = -1;
  int before_ = -1;
  bool is_open_ = false;
};

// A line is drawn this often at most.
constexpr std::chrono::milliseconds kBetweenLines{200};

void WaitUntilALineIsDue() { std::this_thread::sleep_for(kBetweenLines * 21 / 20); }

TEST(Progress, ShowsCountsAndClearsTheLine) {
  const Terminal terminal;
  if (!terminal.is_open()) GTEST_SKIP() << "no pseudo-terminal";
  {
    const auto begin = std::chrono::steady_clock::now();
    Progress progress("evaluated");
    progress.ShowCount(1, 8, "windows");
    const bool may_be_due = std::chrono::steady_clock::now() - begin >= kBetweenLines;
    WaitUntilALineIsDue();
    progress.ShowCount(3, 8, "windows");
    const std::string first = absl::StrCat(kClear, "evaluated 1 of 8 windows (12%)");
    const std::string second = absl::StrCat(kClear, "evaluated 3 of 8 windows (38%)");
    std::string got = terminal.Read(second.size());
    if (may_be_due && got == first) got = terminal.Read(second.size());
    EXPECT_EQ(got, second);
  }
  terminal.Expect("");
}

// The tiny model's weights, all 0, and the bytes of each parameter in fp32.
class WeightProgressTest : public ::testing::Test {
 protected:
  WeightProgressTest()
      : config_(*hf::ParseModelConfig(test::TinyConfig().dump(), "config.json")),
        parameters_(trainer::ListParameters(config_)) {}

  static absl::StatusOr<Reader> Zeros(const ParameterShape&) {
    return [](uint64_t, std::span<std::byte>) { return absl::OkStatus(); };
  }

  const hf::ModelConfig config_;
  const std::vector<ParameterShape> parameters_;
  const Terminal terminal_;
};

TEST_F(WeightProgressTest, CountsTheParametersBeforeAndNeverGoesBack) {
  if (!terminal_.is_open()) GTEST_SKIP() << "no pseudo-terminal";
  ASSERT_EQ(trainer::ExportedBytes(parameters_), 70'272U);
  WeightProgress progress("loaded", config_);
  const trainer::WeightSource source = progress.Watch(Zeros);
  std::vector<std::byte> piece(4096);
  const Reader embedding = *source(parameters_[0]);
  const Reader query = *source(parameters_[2]);
  WaitUntilALineIsDue();
  // The embedding has 8 KiB, and the norm of the first layer 128 bytes.
  ASSERT_TRUE(query(0, piece).ok());
  terminal_.Expect("loaded 12.1 KiB of 68.6 KiB (18%)");
  WaitUntilALineIsDue();
  ASSERT_TRUE(embedding(4096, piece).ok());
  terminal_.Expect("loaded 12.1 KiB of 68.6 KiB (18%)");
}

TEST_F(WeightProgressTest, CountsThePiecesOfAStream) {
  if (!terminal_.is_open()) GTEST_SKIP() << "no pseudo-terminal";
  WeightProgress progress("exported", config_);
  const std::vector<std::byte> piece(4096);
  const trainer::WeightStream stream = progress.Watch(
      [&](const ParameterShape&, const trainer::ConsumeBytes& consume) { return consume(piece); });
  WaitUntilALineIsDue();
  uint64_t consumed = 0;
  const auto consume = [&](std::span<const std::byte> bytes) {
    consumed += bytes.size();
    return absl::OkStatus();
  };
  ASSERT_TRUE(stream(parameters_[2], consume).ok());
  EXPECT_EQ(consumed, piece.size());
  terminal_.Expect("exported 12.1 KiB of 68.6 KiB (18%)");
}

}  // namespace
}  // namespace spillway::command
