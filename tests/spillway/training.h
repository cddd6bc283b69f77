// SPDX-License-Identifier: Apache-2.0
//
// Arguments for training runs of a tiny model in a temporary folder, and the numbers of these runs.

#ifndef SPILLWAY_TESTS_SPILLWAY_TRAINING_H_
#define SPILLWAY_TESTS_SPILLWAY_TRAINING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/spillway/command.h"
#include "tests/spillway/tiny_model.h"
#include "tests/temp_folder.h"

namespace spillway::test {

// The results that must not differ between two runs, however their bytes moved: for each step its
// loss, gradient norm, loss scale and whether it was skipped; and the hash of the final weights.
struct Numbers {
  std::vector<std::string> steps;
  std::string weights_hash;

  friend bool operator==(const Numbers&, const Numbers&) = default;
};

// A tiny model, its data, and a folder for stores and logs. Runs use two threads, so that the
// partition of work is exercised.
class Training {
 public:
  Training() {
    WriteTinyModel(model());
    WriteTinyData(data());
  }

  std::string model() const { return folder_ / "model"; }
  std::string data() const { return folder_ / "data"; }
  std::string store() const { return folder_ / "store"; }
  std::string log() const { return folder_ / "log.jsonl"; }
  std::string operator/(std::string_view name) const { return folder_ / name; }

  // Returns the arguments of a run of `steps` steps on random weights in memory. A caller adds
  // --store and other flags.
  Arguments Train(int64_t steps) const {
    return {"train",
            "--model",
            model(),
            "--data",
            data(),
            "--init",
            "random",
            "--seed",
            "7",
            "--seq",
            "16",
            "--lr",
            "1e-2",
            "--json",
            "--hash-weights",
            "--threads",
            "2",
            "--steps",
            std::to_string(steps),
            "--log-json",
            log()};
  }
  Arguments TrainInStore(int64_t steps) const {
    return Train(steps) + Arguments{"--store", store()};
  }

  // Returns the numbers of the run whose log is in log() and whose summary is `json`.
  Numbers NumbersOf(const Json& json) const;

 private:
  TempFolder folder_;
};

// Returns the number in "(12345 bytes)" in a message, or "" if there is none.
std::string BytesNamedIn(const std::string& message);

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_TRAINING_H_
