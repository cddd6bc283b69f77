// SPDX-License-Identifier: Apache-2.0
//
// The subcommands. Each function adds one, with its flags, to the app. Once the command line is
// parsed, `*run` does the work of the subcommand that was chosen.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_COMMANDS_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_COMMANDS_H_

#include <functional>

#include "absl/status/status.h"
#include "tools/spillway/command/arguments.h"

namespace spillway::command {

using Run = std::function<absl::Status()>;

void AddTrainCommand(CLI::App* app, Run* run);
void AddEvalCommand(CLI::App* app, Run* run);
void AddGenerateCommand(CLI::App* app, Run* run);
void AddBenchCommand(CLI::App* app, Run* run);
void AddBenchIoCommand(CLI::App* bench, Run* run);
void AddBenchTiersCommand(CLI::App* bench, Run* run);
void AddBenchUpdateCommand(CLI::App* bench, Run* run);
void AddBenchTrainCommand(CLI::App* bench, Run* run);
void AddPlanCommand(CLI::App* app, Run* run);
void AddSimulateCommand(CLI::App* app, Run* run);
void AddCapacityCommand(CLI::App* app, Run* run);
void AddInspectCommand(CLI::App* app, Run* run);
void AddFsckCommand(CLI::App* app, Run* run);
void AddSnapshotCommand(CLI::App* app, Run* run);
void AddTrimCommand(CLI::App* app, Run* run);
void AddRemoveCommand(CLI::App* app, Run* run);
void AddDoctorCommand(CLI::App* app, Run* run);
void AddReportCommand(CLI::App* app, Run* run);
void AddCompletionCommand(CLI::App* app, Run* run);
void AddManCommand(CLI::App* app, Run* run);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_COMMANDS_H_
