// SPDX-License-Identifier: Apache-2.0
//
// Opens an engine with choices that its users do not have; for tests and comparisons.

#ifndef SPILLWAY_ENGINE_OPEN_ENGINE_H_
#define SPILLWAY_ENGINE_OPEN_ENGINE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "io/io_engine.h"
#include "io/make_io_engine.h"
#include "spillway/engine.h"
#include "src/plan/ways_to_retain.h"

namespace spillway::engine {

using MakeIo = std::function<absl::StatusOr<std::unique_ptr<io::IoEngine>>(
    IoKind, const io::IoEngineOptions&, const std::string& folder, const io::Announce&)>;

struct OpenChoices {
  MakeIo make_io = io::MakeIoEngine;  // makes the I/O engine of the store
  // Chooses what plans retain, if steps are planned.
  plan::ChooseRetained* choose_retained = &plan::WaysToRetain;
};

// Like Engine::Open, which uses the default choices.
absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(EngineOptions options,
                                                   const OpenChoices& choices);

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_OPEN_ENGINE_H_
