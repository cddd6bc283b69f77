// SPDX-License-Identifier: Apache-2.0
//
// C ABI: the engine. The calls open an engine, register tensors, declare future uses, end steps,
// make tensors durable, and report statistics.

#include "spillway/engine.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spillway/interrupt.h"
#include "src/base/status_macros.h"
#include "src/capi/calls.h"
#include "src/capi/handles.h"
#include "src/capi/json.h"

namespace spillway::capi {
namespace {

spw_engine_options DefaultOptions() {
  const EngineOptions defaults;
  spw_engine_options options = {};
  options.mode = SPW_CREATE;
  options.io = SPW_AUTO;
  options.device_kind = SPW_HOST;
  options.store_bytes = defaults.store_bytes;
  options.device_bytes = defaults.device_bytes;
  options.pinned_bytes = defaults.pinned_bytes;
  options.calibration = SPW_KEEP;
  options.plan_steps = 1;
  options.queue_depth = defaults.queue_depth;
  for (int32_t& tier : options.placement) tier = SPW_NOWHERE;
  return options;
}

absl::StatusOr<EngineOptions> ToOptions(const spw_engine_options& given) {
  EngineOptions options;
  if (given.num_store > 0)
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(given.store, "spw_engine_options.store"));
  for (size_t i = 0; i < given.num_store; ++i) {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(given.store[i], "a folder of spw_engine_options.store"));
    options.store.emplace_back(given.store[i]);
  }
  SPILLWAY_RETURN_IF_ERROR(ToEnum(given.mode, OpenMode::kScratch, "mode", &options.mode));
  SPILLWAY_RETURN_IF_ERROR(ToEnum(given.io, IoKind::kPosix, "io", &options.io));
  SPILLWAY_RETURN_IF_ERROR(
      ToEnum(given.calibration, Calibration::kNow, "calibration", &options.calibration));
  auto kind = Device::Kind::kHost;
  SPILLWAY_RETURN_IF_ERROR(ToEnum(given.device_kind, Device::Kind::kCuda, "device_kind", &kind));
  options.device = kind == Device::Kind::kCuda ? Device::Cuda(given.device_index) : Device::Host();
  options.store_bytes = given.store_bytes;
  options.device_bytes = given.device_bytes;
  options.pinned_bytes = given.pinned_bytes;
  options.page_bytes = given.page_bytes;
  options.plan_steps = given.plan_steps != 0;
  options.queue_depth = given.queue_depth;
  for (size_t role = 0; role < SPW_NUM_ROLES; ++role) {
    if (given.placement[role] == SPW_NOWHERE) continue;
    auto tier = Tier::kDevice;
    SPILLWAY_RETURN_IF_ERROR(ToEnum(given.placement[role], Tier::kNvme, "placement", &tier));
    options.placement[role] = tier;
  }
  options.timeline_events = given.timeline_events;
  if (given.announce != nullptr) {
    options.announce = [announce = given.announce,
                        user = given.announce_user](std::string_view message) {
      announce(user, std::string(message).c_str());
    };
  }
  return options;
}

Reader ToReader(spw_reader reader, void* user, const std::string& name) {
  if (reader == nullptr) return {};
  return [=](uint64_t offset, std::span<std::byte> out) -> absl::Status {
    const int failed = reader(user, offset, out.data(), out.size());
    if (failed == 0) return absl::OkStatus();
    return absl::CancelledError(absl::StrCat("tensor '", name, "': its reader returned ", failed,
                                             " for ", out.size(), " bytes at offset ", offset));
  };
}

}  // namespace

spw_tensor_spec DefaultSpec() {
  spw_tensor_spec spec = {};
  spec.dtype = SPW_F32;
  spec.role = SPW_PARAMETER;
  return spec;
}

absl::StatusOr<TensorSpec> ToSpec(const spw_tensor_spec& given) {
  SPILLWAY_RETURN_IF_ERROR(CheckNotNull(given.name, "spw_tensor_spec.name"));
  if (given.rank > 0) SPILLWAY_RETURN_IF_ERROR(CheckNotNull(given.shape, "spw_tensor_spec.shape"));
  TensorSpec spec;
  spec.name = given.name;
  SPILLWAY_RETURN_IF_ERROR(ToEnum(given.dtype, DType::kU8, "dtype", &spec.dtype));
  SPILLWAY_RETURN_IF_ERROR(ToEnum(given.role, Role::kActivation, "role", &spec.role));
  spec.shape.assign(given.shape, given.shape + given.rank);
  spec.tile_rows = given.tile_rows;
  spec.transient = given.transient != 0;
  return spec;
}

}  // namespace spillway::capi

using namespace spillway;        // NOLINT(google-build-using-namespace): for the calls below
using namespace spillway::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

void spw_engine_options_init(spw_engine_options* options, size_t size) {
  Init(options, size, DefaultOptions());
}

void spw_tensor_spec_init(spw_tensor_spec* spec, size_t size) { Init(spec, size, DefaultSpec()); }

spw_status* spw_engine_open(const spw_engine_options* options, spw_engine** engine) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckStruct(options, "spw_engine_options"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    SPILLWAY_ASSIGN_OR_RETURN(EngineOptions given,
                              ToOptions(Grown(options, options->size, DefaultOptions())));
    const Device device = given.device;
    SPILLWAY_ASSIGN_OR_RETURN(std::unique_ptr<Engine> opened, Engine::Open(std::move(given)));
    auto handle = std::make_unique<spw_engine>();
    handle->engine = std::move(opened);
    handle->device = device;
    *engine = handle.release();
    return absl::OkStatus();
  });
}

spw_engine* spw_engine_retain(spw_engine* engine) {
  if (engine != nullptr) engine->handles.fetch_add(1, std::memory_order_relaxed);
  return engine;
}

void spw_engine_release(spw_engine* engine) {
  if (engine == nullptr) return;
  if (engine->handles.fetch_sub(1, std::memory_order_acq_rel) == 1) delete engine;
}

// --- Tensors ---

int spw_read_confirmed(void* confirmed_reader, uint64_t offset, void* out, size_t bytes) {
  auto& reader = *static_cast<spw_confirmed_reader*>(confirmed_reader);
  reader.is_done = 0;
  (void)reader.read(reader.user, offset, out, bytes);
  return reader.is_done != 0 ? 0 : 1;
}

spw_status* spw_register(spw_engine* engine, const spw_tensor_spec* spec, spw_reader reader,
                         void* user, uint32_t* id) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckStruct(spec, "spw_tensor_spec"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(id, "id"));
    SPILLWAY_ASSIGN_OR_RETURN(const TensorSpec given,
                              ToSpec(Grown(spec, spec->size, DefaultSpec())));
    SPILLWAY_ASSIGN_OR_RETURN(const TensorId made,
                              in.Register(given, ToReader(reader, user, given.name)));
    *id = made.value;
    return absl::OkStatus();
  });
}

spw_status* spw_unregister(spw_engine* engine, uint32_t id) {
  return With(engine, [&](Engine& in) -> absl::Status { return in.Unregister(TensorId{id}); });
}

spw_status* spw_forget(spw_engine* engine, const char* name) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(name, "name"));
    return in.ForgetName(name);
  });
}

spw_status* spw_find(spw_engine* engine, const char* name, uint32_t* id) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(name, "name"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(id, "id"));
    SPILLWAY_ASSIGN_OR_RETURN(const TensorId found, in.Find(name));
    *id = found.value;
    return absl::OkStatus();
  });
}

spw_status* spw_tensor_json(spw_engine* engine, uint32_t id, char** json) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    SPILLWAY_RETURN_IF_ERROR(in.CheckTile(TensorId{id}));
    *json = CopyText(ToJson(in.Spec(TensorId{id})));
    return absl::OkStatus();
  });
}

spw_status* spw_tile_range(spw_engine* engine, uint32_t id, uint64_t tile, uint64_t* offset_bytes,
                           uint64_t* size_bytes) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(TileOf(in, id, tile).status());
    const TensorSpec& spec = in.Spec(TensorId{id});
    if (offset_bytes != nullptr) *offset_bytes = spec.tile_offset_bytes(tile);
    if (size_bytes != nullptr) *size_bytes = spec.tile_bytes(tile);
    return absl::OkStatus();
  });
}

// --- Uses to come, and steps ---

spw_status* spw_prefetch(spw_engine* engine, const spw_use* uses, size_t num_uses) {
  return With(engine, [&](Engine& in) -> absl::Status {
    if (num_uses > 0) SPILLWAY_RETURN_IF_ERROR(CheckNotNull(uses, "uses"));
    std::vector<Use> given(num_uses);
    for (size_t i = 0; i < num_uses; ++i) {
      given[i].tile = TileRef(TensorId{uses[i].id}, uses[i].tile);
      SPILLWAY_RETURN_IF_ERROR(ToEnum(uses[i].tier, Tier::kNvme, "tier", &given[i].tier));
      SPILLWAY_RETURN_IF_ERROR(
          ToEnum(uses[i].access, Access::kDiscard, "access", &given[i].access));
    }
    return in.Prefetch(given);
  });
}

void spw_clear_prefetch(spw_engine* engine) {
  if (engine != nullptr) engine->engine->ClearPrefetch();
}

spw_status* spw_evict(spw_engine* engine, uint32_t id, uint64_t tile) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_ASSIGN_OR_RETURN(const TileRef ref, TileOf(in, id, tile));
    return in.Evict(ref);
  });
}

spw_status* spw_discard(spw_engine* engine, uint32_t id, uint64_t tile) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_ASSIGN_OR_RETURN(const TileRef ref, TileOf(in, id, tile));
    return in.Discard(ref);
  });
}

spw_status* spw_end_step(spw_engine* engine) {
  return With(engine, [&](Engine& in) -> absl::Status { return in.EndStep(); });
}

spw_status* spw_wait_for_plan(spw_engine* engine) {
  return With(engine, [&](Engine& in) -> absl::Status { return in.WaitForPlan(); });
}

void spw_set_interrupt(spw_interrupt check, spw_interrupt put_back, void* user) {
  if (check == nullptr) return SetInterrupt({});
  const auto ignored = [put_back, user] { (void)put_back(user); };
  SetInterrupt([check, user] { return check(user) != 0; },
               put_back != nullptr ? std::function<void()>(ignored) : nullptr);
}

// --- Durability ---

spw_status* spw_commit(spw_engine* engine, const void* user_state, size_t bytes) {
  return With(engine, [&](Engine& in) -> absl::Status {
    if (bytes > 0) SPILLWAY_RETURN_IF_ERROR(CheckNotNull(user_state, "user_state"));
    return in.Commit({static_cast<const char*>(user_state), bytes});
  });
}

spw_status* spw_user_state(spw_engine* engine, void** user_state, size_t* bytes) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(user_state, "user_state"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(bytes, "bytes"));
    const std::optional<std::string> state = in.UserState();
    *user_state = state ? CopyText(*state) : nullptr;
    *bytes = state ? state->size() : 0;
    return absl::OkStatus();
  });
}

spw_status* spw_snapshot(spw_engine* engine, const char* label) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(label, "label"));
    return in.Snapshot(label);
  });
}

spw_status* spw_snapshots_json(spw_engine* engine, char** json) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<SnapshotInfo> snapshots, in.Snapshots());
    *json = CopyText(ToJson(snapshots));
    return absl::OkStatus();
  });
}

spw_status* spw_snapshot_user_state(spw_engine* engine, const char* label, void** user_state,
                                    size_t* bytes) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(label, "label"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(user_state, "user_state"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(bytes, "bytes"));
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<SnapshotInfo> snapshots, in.Snapshots());
    for (const SnapshotInfo& each : snapshots) {
      if (each.label != label) continue;
      *user_state = CopyText(each.user_state);
      *bytes = each.user_state.size();
      return absl::OkStatus();
    }
    return absl::NotFoundError(absl::StrCat("there is no snapshot '", label, "'"));
  });
}

spw_status* spw_restore(spw_engine* engine, const char* label) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(label, "label"));
    return in.Restore(label);
  });
}

spw_status* spw_drop(spw_engine* engine, const char* label) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(label, "label"));
    return in.Drop(label);
  });
}

spw_status* spw_store_id(spw_engine* engine, char** id) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(id, "id"));
    *id = CopyText(in.StoreId());
    return absl::OkStatus();
  });
}

spw_status* spw_commit_number(spw_engine* engine, uint64_t* number) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(number, "number"));
    *number = in.CommitNumber();
    return absl::OkStatus();
  });
}

// --- What happened ---

spw_status* spw_stats_json(spw_engine* engine, char** json) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = CopyText(ToJson(in.Stats()));
    return absl::OkStatus();
  });
}

spw_status* spw_take_timeline_json(spw_engine* engine, char** json) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = CopyText(ToJson(in.TakeTimeline()));
    return absl::OkStatus();
  });
}

uint64_t spw_page_bytes(spw_engine* engine) {
  return engine != nullptr ? engine->engine->page_bytes() : 0;
}

}  // extern "C"
