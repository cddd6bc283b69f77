// SPDX-License-Identifier: Apache-2.0
//
// The bytes of optimizer state in a step's log line. They are zero if the state is in memory. If it
// is placed on NVMe, each byte is counted once.

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

constexpr int64_t kSteps = 6;

// Parameters of the tiny model. Its head is tied to its embedding of 64 tokens with 32 elements. It
// has two layers with 4 heads of 8 elements, 2 heads for keys and values, and an MLP of width 48.
constexpr uint64_t kLayerParameters =
    2 * 32 * 32 + 2 * uint64_t{16} * 32 + 3 * uint64_t{48} * 32 + 2 * uint64_t{32};
constexpr uint64_t kParameters = uint64_t{64} * 32 + 2 * kLayerParameters + 32;

struct StateBytes {
  std::vector<uint64_t> read, written;  // by step
  uint64_t all_read = 0;                // over NVMe, all roles and steps
  uint64_t all_written = 0;
};

StateBytes Log(const Training& training, const Arguments& arguments) {
  const Ended ended = RunCommand(arguments);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  StateBytes bytes;
  for (const Json& line : ReadLog(training.log())) {
    bytes.read.push_back(line.at("state_read_bytes"));
    bytes.written.push_back(line.at("state_written_bytes"));
    bytes.all_read += line.at("read_bytes").at("nvme").get<uint64_t>();
    bytes.all_written += line.at("written_bytes").at("nvme").get<uint64_t>();
  }
  EXPECT_EQ(bytes.read.size(), static_cast<size_t>(kSteps));
  return bytes;
}

TEST(StateBytes, InMemoryThereAreNone) {
  const Training training;
  const StateBytes bytes = Log(training, training.Train(kSteps));
  EXPECT_EQ(bytes.read, std::vector<uint64_t>(kSteps, 0));
  EXPECT_EQ(bytes.written, std::vector<uint64_t>(kSteps, 0));
}

// Runs on demand, because a plan may read ahead for the next step. The first step reads only master
// weights, because the moments are zeros that no file holds. A write may end in the step after its
// own, but before that step reads the same bytes.
TEST(StateBytes, OnNvmeAdamWReadsAndWrites12BytesAParameter) {
  const Training training;
  const StateBytes bytes = Log(
      training, training.TrainInStore(kSteps) + Arguments{"--precision", "fp16-amp", "--policy",
                                                          "demand", "--place", "optimizer=nvme"});
  ASSERT_EQ(bytes.read.size(), static_cast<size_t>(kSteps));
  uint64_t read = 0, written = 0;
  for (size_t step = 0; step < bytes.read.size(); ++step) {
    EXPECT_EQ(bytes.read[step], (step == 0 ? 4 : 12) * kParameters) << step;
    read += bytes.read[step];
    written += bytes.written[step];
    EXPECT_GE(written, step * 12 * kParameters) << step;
    // The write of the initial master weights may still be in flight when the first step begins.
    EXPECT_LE(written, ((step + 1) * 12 + 4) * kParameters) << step;
  }
  // Only optimizer state was read from or written to NVMe.
  EXPECT_EQ(bytes.all_read, read);
  EXPECT_EQ(bytes.all_written, written);
}

// Bytes of compact AdamW state; a vector is one row. Each row has a residual and two codes for each
// element, a byte each, and two scales of 2 bytes for each 64 elements.
constexpr uint64_t CompactBytes(uint64_t rows, uint64_t width) {
  return rows * (3 * width + 4 * ((width + 63) / 64));
}
constexpr uint64_t kCompactLayer = 2 * CompactBytes(32, 32) + 2 * CompactBytes(16, 32) +
                                   2 * CompactBytes(48, 32) + CompactBytes(32, 48) +
                                   2 * CompactBytes(1, 32);
constexpr uint64_t kCompactState = CompactBytes(64, 32) + 2 * kCompactLayer + CompactBytes(1, 32);
static_assert(kCompactState + 2 * kParameters <= 52 * kParameters / 10);

TEST(StateBytes, OnNvmeCompactAdamWReadsAndWritesItsRows) {
  const Training training;
  const StateBytes bytes =
      Log(training, training.TrainInStore(kSteps) +
                        Arguments{"--precision", "fp16-amp", "--state-format", "compact",
                                  "--policy", "demand", "--place", "optimizer=nvme"});
  ASSERT_EQ(bytes.read.size(), static_cast<size_t>(kSteps));
  uint64_t written = 0;
  for (size_t step = 0; step < bytes.read.size(); ++step) {
    EXPECT_EQ(bytes.read[step], kCompactState) << step;
    written += bytes.written[step];
    EXPECT_GE(written, step * kCompactState) << step;
    // The write of the initial residuals may still be in flight when the first step begins.
    EXPECT_LE(written, (step + 2) * kCompactState) << step;
  }
  EXPECT_EQ(bytes.all_read, kSteps * kCompactState);
  EXPECT_EQ(bytes.all_written, written);
}

TEST(StateBytes, WeightsAndGradientsOnNvmeAreNoState) {
  const Training training;
  const StateBytes bytes =
      Log(training,
          training.TrainInStore(kSteps) + Arguments{"--precision", "fp16-amp", "--policy", "demand",
                                                    "--place", "parameters=nvme,gradients=nvme"});
  EXPECT_EQ(bytes.read, std::vector<uint64_t>(kSteps, 0));
  EXPECT_EQ(bytes.written, std::vector<uint64_t>(kSteps, 0));
  EXPECT_GT(bytes.all_read, 0u);
  EXPECT_GT(bytes.all_written, 0u);
}

}  // namespace
}  // namespace spillway::test
