// SPDX-License-Identifier: Apache-2.0
//
// Opening an engine with what its users do not choose: tests and comparisons do.

#ifndef SPILLWAY_ENGINE_OPEN_ENGINE_H_
#define SPILLWAY_ENGINE_OPEN_ENGINE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "io/io_engine.h"
#include "io/make_io_engine.h"
#include "spillway/engine.h"
#include "src/plan/keep.h"

namespace spillway::engine {

using MakeIo = std::function<absl::StatusOr<std::unique_ptr<io::IoEngine>>(
    io::IoEngineKind, const io::IoEngineOptions&, const std::string& folder, const io::Announce&)>;

struct OpenChoices {
  MakeIo make_io = io::MakeIoEngine;  // whom the store's bytes go through
  // What plans keep, where steps are planned. All but kPlanned do what caches do.
  plan::Policy policy = plan::Policy::kPlanned;
};

// As Engine::Open, which chooses nothing.
absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(EngineOptions options,
                                                   const OpenChoices& choices);

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_OPEN_ENGINE_H_
