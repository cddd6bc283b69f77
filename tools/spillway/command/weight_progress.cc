// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/command/weight_progress.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/base/status_macros.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {

using trainer::ParameterShape;

WeightProgress::WeightProgress(std::string verb, const hf::ModelConfig& config)
    : progress_(std::move(verb)) {
  for (const ParameterShape& parameter : trainer::ListParameters(config)) {
    bytes_before_[parameter.name] = total_bytes_;
    total_bytes_ += trainer::ExportedBytes({parameter});
  }
}

void WeightProgress::Show(const std::string& parameter, uint64_t bytes) {
  done_bytes_ = std::max(done_bytes_, bytes_before_[parameter] + bytes);
  progress_.Show(done_bytes_, total_bytes_);
}

trainer::WeightSource WeightProgress::Watch(trainer::WeightSource source) {
  return [this,
          source = std::move(source)](const ParameterShape& parameter) -> absl::StatusOr<Reader> {
    SPILLWAY_ASSIGN_OR_RETURN(Reader reader, source(parameter));
    return [this, name = parameter.name, reader = std::move(reader)](uint64_t offset_bytes,
                                                                     std::span<std::byte> out) {
      const absl::Status status = reader(offset_bytes, out);
      Show(name, offset_bytes + out.size());
      return status;
    };
  };
}

trainer::WeightStream WeightProgress::Watch(trainer::WeightStream stream) {
  return [this, stream = std::move(stream)](const ParameterShape& parameter,
                                            const trainer::ConsumeBytes& consume) {
    uint64_t bytes = 0;
    return stream(parameter, [&](std::span<const std::byte> piece) {
      const absl::Status status = consume(piece);
      Show(parameter.name, bytes += piece.size());
      return status;
    });
  };
}

}  // namespace spillway::command
