// SPDX-License-Identifier: Apache-2.0
//
// Opens the public engine over a disk that fails on request.

#ifndef SPILLWAY_TESTS_ENGINE_FAULTY_MACHINE_H_
#define SPILLWAY_TESTS_ENGINE_FAULTY_MACHINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "io/faulty_io_engine.h"
#include "src/base/status_macros.h"
#include "src/engine/engine_parts.h"
#include "src/plan/ways_to_retain.h"

namespace spillway::engine {

// An engine and the disk beneath it.
struct Machine {
  std::unique_ptr<Engine> engine;
  io::FaultyIoEngine* disk = nullptr;  // owned by the engine
};

inline absl::StatusOr<Machine> OpenMachine(
    EngineOptions options, uint64_t seed, const std::vector<io::Fault>& from_the_start = {},
    plan::ChooseRetained* choose_retained = &plan::WaysToRetain) {
  Machine machine;
  OpenChoices choices;
  choices.choose_retained = choose_retained;
  choices.make_io =
      [&](IoKind kind, const io::IoEngineOptions& io_options, const std::string& folder,
          const io::Announce& announce) -> absl::StatusOr<std::unique_ptr<io::IoEngine>> {
    SPILLWAY_ASSIGN_OR_RETURN(auto disk, io::FaultyIoEngine::Create(seed, [&](io::ResultHook hook) {
                                io::IoEngineOptions with_hook = io_options;
                                with_hook.result_hook = std::move(hook);
                                return io::MakeIoEngine(kind, with_hook, folder, announce);
                              }));
    for (const io::Fault& fault : from_the_start) disk->Inject(fault);
    machine.disk = disk.get();
    return disk;
  };
  SPILLWAY_ASSIGN_OR_RETURN(machine.engine, OpenEngine(std::move(options), choices));
  return machine;
}

}  // namespace spillway::engine

#endif  // SPILLWAY_TESTS_ENGINE_FAULTY_MACHINE_H_
