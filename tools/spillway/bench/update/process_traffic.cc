// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/update/process_traffic.h"

#include <cstdint>
#include <fstream>
#include <string>

namespace spillway::bench_update {

Traffic ProcessTraffic() {
  Traffic traffic;
  std::ifstream lines("/proc/self/io");
  std::string name;
  uint64_t value = 0;
  while (lines >> name >> value) {
    if (name == "read_bytes:") traffic.read_bytes = value;
    if (name == "write_bytes:") traffic.written_bytes = value;
  }
  return traffic;
}

}  // namespace spillway::bench_update
