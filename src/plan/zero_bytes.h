// SPDX-License-Identifier: Apache-2.0
//
// How many bytes one rank of a training run holds, for each way to divide a model's training state
// among ranks. A rank is a process with one GPU. The ways are those of ZeRO (arXiv:1910.02054,
// section 5 and figure 1), of PyTorch's DistributedDataParallel (DDP), ZeroRedundancyOptimizer and
// fully_shard (FSDP2), and of pipelines. Bytes are of weights, gradients and optimizer state:
// activations and temporary buffers are not counted, nor is what a rank's engine holds beside them.
//
// A parameter is one number of the model here. Bytes are fractions where they are averages, as
// those of a scale that a block of elements shares.

#ifndef SPILLWAY_PLAN_ZERO_BYTES_H_
#define SPILLWAY_PLAN_ZERO_BYTES_H_

#include <cstdint>

#include "spillway/optimizer.h"

namespace spillway::plan {

// What is divided among the ranks. Each rank has all of the rest.
enum class Divided : uint8_t {
  kNothing,    // DDP; ZeRO's stage 0
  kState,      // stage 1; DDP with ZeroRedundancyOptimizer
  kGradients,  // state and gradients: stage 2
  kWeights,    // state, gradients and weights: stage 3; fully_shard
};

enum class Resting : uint8_t { kGpu, kMemory, kNvme };

// A way to train, as one rank sees it. The defaults are those of ZeRO's figure 1: mixed precision
// with 16-bit weights and gradients, and Adam's state in fp32 with a master weight, all on the GPU.
struct RankSetup {
  double parameters = 0;  // of the model; in a pipeline those of the rank's stages
  Divided divided = Divided::kNothing;
  // How many ranks each part is divided among. Ranks that hold the same part again, as the replicas
  // of HSDP, do not count.
  uint32_t ranks = 1;

  // Bytes a parameter.
  double weight_bytes = 2;    // 4: shards in fp32
  double gradient_bytes = 2;  // 4: gradients in fp32, as of shards in fp32, or by param.grad_dtype
  double state_bytes = 12;    // see StateBytes()

  // Where each rests between its uses. CPUOffloadPolicy has weights and gradients in memory;
  // spillway.torch has state on NVMe, and with gradients="engine" gradients, too.
  Resting weights = Resting::kGpu;
  Resting gradients = Resting::kGpu;
  Resting state = Resting::kGpu;

  // Of divided weights, the most parameters whose whole weights the GPU holds at once, and their
  // bytes a parameter. fully_shard has two units there, the one that is computed and the next one,
  // and with reshard_after_forward=False all of the model from forward to backward.
  double gathered_parameters = 0;
  double gathered_bytes = 2;  // MixedPrecisionPolicy's param_dtype; weight_bytes without one

  // How often state on NVMe is there. 2: a commit keeps its bytes until the next one, while an
  // update writes new ones elsewhere.
  double copies_on_nvme = 1;
};

struct RankBytes {
  double gpu = 0;
  double memory = 0;  // a run's `pinned` bytes, which do not depend on the model, come on top
  double nvme = 0;
};

// Returns the bytes of the average rank. The largest share may be larger: see ShardRows().
// REQUIRES: ranks >= 1.
RankBytes BytesOfRank(const RankSetup& setup);

// Returns the bytes of state a parameter, the master weight of a 16-bit weight included. `moments`:
// how many fp32 numbers the rule has for each parameter (AdamW 2, with amsgrad 3; Lion and SGD with
// momentum 1). Exact for parameters whose rows have whole blocks (k8Bit: 256 elements; kCompact:
// 64). src/optim/FORMATS.md describes the formats. REQUIRES: weight_bytes is 2, or 4 and the format
// is not kCompact.
double StateBytes(StateFormat format, int moments, int weight_bytes);

// Returns how many of a parameter's `rows` (its first dimension) a rank has with fully_shard, which
// cuts as torch.chunk does: ceil(rows / ranks) for each rank in turn until none are left. So ranks
// from some number on may have none. REQUIRES: rank < ranks.
uint64_t ShardRows(uint64_t rows, uint32_t ranks, uint32_t rank);

// torch.distributed.pipelining's ScheduleGPipe and Schedule1F1B.
enum class PipelineSchedule : uint8_t { kGPipe, k1F1B };

// Returns for how many micro-batches a pipeline's stage holds activations at once, at the peak:
// those that went forward and not yet backward. With 1F1B stage s of S has S - s of them; with
// GPipe all. REQUIRES: stage < stages.
uint32_t MicroBatchesInFlight(PipelineSchedule schedule, uint32_t stages, uint32_t stage,
                              uint32_t micro_batches);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_ZERO_BYTES_H_
