// SPDX-License-Identifier: Apache-2.0
//
// Shows the progress of work that reads all weights of a model once, in fp32: a load, a check, an
// export.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_WEIGHT_PROGRESS_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_WEIGHT_PROGRESS_H_

#include <cstdint>
#include <map>
#include <string>

#include "tools/hf/config.h"
#include "tools/spillway/command/progress.h"
#include "tools/trainer/export.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// Externally synchronised. What Watch returns must not be used after its end. The destructor clears
// the line, for the output that follows.
//
//   WeightProgress progress("loaded", config);
//   Model::Create(engine, pool, config, options, progress.Watch(source));
class WeightProgress {
 public:
  // `verb` is "loaded" in "loaded 1.2 GiB of 3.4 GiB (35%)".
  WeightProgress(std::string verb, const hf::ModelConfig& config);

  // Returns the same weights. A parameter that is read again, as its master weight is, counts once.
  trainer::WeightSource Watch(trainer::WeightSource source);
  trainer::WeightStream Watch(trainer::WeightStream stream);

 private:
  // Shows that all parameters before this one are done, and so many of its bytes.
  void Show(const std::string& parameter, uint64_t bytes);

  Progress progress_;
  std::map<std::string, uint64_t> bytes_before_;  // of each parameter, in ListParameters' order
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;
};

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_WEIGHT_PROGRESS_H_
