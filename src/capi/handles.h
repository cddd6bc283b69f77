// SPDX-License-Identifier: Apache-2.0
//
// The structs behind the handles of the C ABI. Every handle that needs the engine shares ownership
// of it, so the engine lives until the last of them is released. Handles can be released in any
// order.

#ifndef SPILLWAY_CAPI_HANDLES_H_
#define SPILLWAY_CAPI_HANDLES_H_

#include <atomic>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/spillway.h"
#include "spillway/store_reader.h"
#include "spillway/thread_pool.h"
#include "src/base/mutex.h"
#include "src/base/status_macros.h"
#include "src/capi/calls.h"

struct spw_engine {
  std::shared_ptr<spillway::Engine> engine;
  spillway::Device device = spillway::Device::Host();
  std::atomic<int> handles = 1;
};

struct spw_stream {
  std::shared_ptr<spillway::Engine> engine;  // destroyed after the stream
  std::shared_ptr<spillway::Stream> stream;
};

struct spw_lease {
  std::shared_ptr<spillway::Engine> engine;  // destroyed after the lease and the stream
  std::shared_ptr<spillway::Stream> stream;  // on which it ends; destroyed after it; null: none
  spillway::Lease lease;
  spillway::TileRef tile;
  spillway::Tier tier = spillway::Tier::kDevice;
  spillway::Device device = spillway::Device::Host();  // the engine's
};

struct spw_store_reader {
  std::unique_ptr<spillway::StoreReader> reader;
};

namespace spillway::capi {

// Converts a caller's specification of a tensor.
absl::StatusOr<TensorSpec> ToSpec(const spw_tensor_spec& given);
// The defaults of spw_tensor_spec_init.
spw_tensor_spec DefaultSpec();

// Runs `call` on the engine. InvalidArgument if `engine` is null; FailedPrecondition in a process
// that was forked from the engine's.
template <class Call>
spw_status* With(spw_engine* engine, const Call& call) noexcept {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    SPILLWAY_RETURN_IF_ERROR(engine->engine->CheckProcess());
    return call(*engine->engine);
  });
}

// Returns a reference to a tile, after checking that the engine has it.
inline absl::StatusOr<TileRef> TileOf(const Engine& engine, uint32_t id, uint64_t tile) {
  const TileRef ref(TensorId{id}, tile);
  SPILLWAY_RETURN_IF_ERROR(engine.CheckTile(ref));
  return ref;
}

// A parameter that was added to an optimizer of the C ABI.
struct Parameter {
  TensorSpec weight;
  ParameterTensors tensors;
  bool is_removed = false;
};

}  // namespace spillway::capi

struct spw_optimizer {
  std::shared_ptr<spillway::Engine> engine;
  spillway::StateFormat format = spillway::StateFormat::kF32;
  spillway::Rule rule;
  std::unique_ptr<spillway::ThreadPool> pool;
  spillway::base::Mutex mu;
  std::unique_ptr<spillway::Optimizer> optimizer ABSL_PT_GUARDED_BY(mu);
  std::vector<spillway::capi::Parameter> parameters ABSL_GUARDED_BY(mu);
};

namespace spillway::capi {

// Must be called before the optimizer's lock is taken: in a forked process, the thread that held
// the lock may not exist to release it.
inline absl::Status CheckUsable(const spw_optimizer* optimizer) {
  SPILLWAY_RETURN_IF_ERROR(CheckNotNull(optimizer, "optimizer"));
  return optimizer->engine->CheckProcess();
}

inline absl::Status CheckNumber(size_t parameter, const std::vector<Parameter>& parameters) {
  if (parameter >= parameters.size()) {
    return absl::NotFoundError(
        absl::StrCat("parameter ", parameter, " was not added: there are ", parameters.size()));
  }
  if (!parameters[parameter].is_removed) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("parameter ", parameter, " was removed"));
}

}  // namespace spillway::capi

#endif  // SPILLWAY_CAPI_HANDLES_H_
