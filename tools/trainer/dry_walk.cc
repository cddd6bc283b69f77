// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/dry_walk.h"

#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "src/base/status_macros.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/updates.h"

namespace spillway::trainer {

absl::StatusOr<std::unique_ptr<DryWalk>> DryWalk::Create(Engine* engine, Compute* compute,
                                                         const hf::ModelConfig& config,
                                                         const ModelOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<DryWalk> dry(new DryWalk(engine, config, options));
  SPILLWAY_ASSIGN_OR_RETURN(dry->parameters_,
                            RegisterParameters(engine, config, options, WeightSource()));
  SPILLWAY_ASSIGN_OR_RETURN(dry->saved_, RegisterActivations(engine, dry->model_, options));
  SPILLWAY_ASSIGN_OR_RETURN(dry->walk_, Walk::Create({.engine = engine,
                                                      .compute = compute,
                                                      .model = &dry->model_,
                                                      .options = &options,
                                                      .parameters = dry->parameters_,
                                                      .saved = &dry->saved_}));
  return dry;
}

absl::Status DryWalk::Update() {
  ThreadPool pool(1);
  std::unique_ptr<Stream> stream;
  if (options_.on_gpu) {
    SPILLWAY_ASSIGN_OR_RETURN(stream, engine_->CreateStream());
  }
  SPILLWAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<Optimizer> optimizer,
      Optimizer::Create(engine_, &pool, options_.rule, options_.state_format, stream.get()));
  SPILLWAY_ASSIGN_OR_RETURN(const ListedUpdates listed,
                            AddTrained(optimizer.get(), options_, parameters_, /*weight_decay=*/0));
  return optimizer->Step(listed.updates);
}

}  // namespace spillway::trainer
