// SPDX-License-Identifier: Apache-2.0

#include "src/plan/zero_bytes.h"

#include <algorithm>
#include <cstdint>

namespace spillway::plan {
namespace {

double& TierOf(Resting resting, RankBytes* bytes) {
  switch (resting) {
    case Resting::kGpu: return bytes->gpu;
    case Resting::kMemory: return bytes->memory;
    case Resting::kNvme: return bytes->nvme;
  }
  return bytes->gpu;
}

}  // namespace

RankBytes BytesOfRank(const RankSetup& setup) {
  const double all = setup.parameters;
  const double part = all / setup.ranks;
  const auto share = [&](Divided from) { return setup.divided >= from ? part : all; };
  RankBytes bytes;
  TierOf(setup.weights, &bytes) += setup.weight_bytes * share(Divided::kWeights);
  TierOf(setup.gradients, &bytes) += setup.gradient_bytes * share(Divided::kGradients);
  const double copies = setup.state == Resting::kNvme ? setup.copies_on_nvme : 1;
  TierOf(setup.state, &bytes) += copies * setup.state_bytes * share(Divided::kState);
  if (setup.divided == Divided::kWeights)
    bytes.gpu += setup.gathered_bytes * setup.gathered_parameters;
  return bytes;
}

double StateBytes(StateFormat format, int moments, int weight_bytes) {
  const double master = weight_bytes == 2 ? 4 : 0;
  switch (format) {
    case StateFormat::kF32: return master + 4.0 * moments;
    case StateFormat::kBf16: return master + 2.0 * moments;
    case StateFormat::k8Bit: return master + (1 + 4.0 / 256) * moments;  // a scale in fp32 a block
    case StateFormat::kCompact: return 1 + (1 + 2.0 / 64) * moments;     // a scale in fp16 a group
  }
  return 0;
}

uint64_t ShardRows(uint64_t rows, uint32_t ranks, uint32_t rank) {
  const uint64_t chunk = (rows + ranks - 1) / ranks;
  const uint64_t first = std::min(rows, chunk * rank);
  return std::min(chunk, rows - first);
}

uint32_t MicroBatchesInFlight(PipelineSchedule schedule, uint32_t stages, uint32_t stage,
                              uint32_t micro_batches) {
  if (schedule == PipelineSchedule::kGPipe) return micro_batches;
  return std::min(stages - stage, micro_batches);
}

}  // namespace spillway::plan
