/* SPDX-License-Identifier: Apache-2.0
 *
 * A user of the C ABI. It registers a tensor larger than its memory budgets, leases and changes it,
 * commits, takes a snapshot and reopens the store. It checks that the store holds what was
 * committed and nothing more, and restores the snapshot.
 *
 *   consumer_c STORE_FOLDER
 */

#include <spillway/spillway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRows = 64, kColumns = 4096 }; /* 1 MiB; each row is a tile of 16 KiB */

static void Check(spw_status* status, const char* what) {
  if (status == NULL) return;
  fprintf(stderr, "consumer_c: %s: %s (code %d)\n", what, spw_status_message(status),
          spw_status_code(status));
  spw_status_free(status);
  exit(1);
}

static void Require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "consumer_c: %s\n", what);
  exit(1);
}

static int FillRows(void* user, uint64_t offset, void* out, size_t bytes) {
  float* values = out;
  size_t i;
  for (i = 0; i < bytes / sizeof(float); ++i)
    values[i] = (float)((offset / sizeof(float) + i) % 1000);
  ++*(int*)user;
  return 0;
}

static spw_engine* Open(const char* folder, int32_t mode) {
  spw_engine_options options;
  spw_engine* engine = NULL;
  spw_engine_options_init(&options, sizeof options);
  options.store = &folder;
  options.num_store = 1;
  options.mode = mode;
  options.device_bytes = 4 * 16384;
  options.pinned_bytes = 8 * 16384;
  Check(spw_engine_open(&options, &engine), "open");
  return engine;
}

static uint32_t Register(spw_engine* engine, int* calls) {
  const int64_t shape[] = {kRows, kColumns};
  spw_tensor_spec spec;
  uint32_t id = 0;
  spw_tensor_spec_init(&spec, sizeof spec);
  spec.name = "weight";
  spec.shape = shape;
  spec.rank = 2;
  spec.tile_rows = 1;
  Check(spw_register(engine, &spec, FillRows, calls, &id), "register");
  return id;
}

static void AddOne(spw_engine* engine, uint32_t id) {
  uint64_t tile;
  size_t i;
  for (tile = 0; tile < kRows; ++tile) {
    spw_lease* lease = NULL;
    float* values;
    Check(spw_acquire(engine, id, tile, SPW_READ_WRITE, NULL, &lease), "acquire");
    values = spw_lease_data(lease);
    for (i = 0; i < spw_lease_size_bytes(lease) / sizeof(float); ++i) values[i] += 1;
    spw_lease_release(lease, NULL);
  }
  Check(spw_end_step(engine), "end of step");
}

static void Expect(spw_engine* engine, uint32_t id, float added) {
  uint64_t i;
  for (i = 0; i < (uint64_t)kRows * kColumns; i += 777) {
    float value = 0;
    Check(spw_read(engine, id, i * sizeof value, &value, sizeof value), "read");
    Require(value == (float)(i % 1000) + added, "a value is another than what was written");
  }
}

int main(int argc, char** argv) {
  spw_engine* engine;
  uint32_t id;
  int calls = 0;
  void* state = NULL;
  size_t bytes = 0;
  char* snapshots = NULL;
  if (argc != 2) {
    fprintf(stderr, "usage: consumer_c STORE_FOLDER\n");
    return 2;
  }
  engine = Open(argv[1], SPW_CREATE);
  id = Register(engine, &calls);
  Require(calls == kRows, "the reader was not called for each tile");
  AddOne(engine, id);
  Check(spw_commit(engine, "step 1", 6), "commit");
  Check(spw_snapshot(engine, "one"), "snapshot");
  AddOne(engine, id); /* never committed */
  Expect(engine, id, 2);
  spw_engine_release(engine);

  engine = Open(argv[1], SPW_OPEN_OR_CREATE);
  id = Register(engine, &calls);
  Require(calls == kRows, "the reader was called for a stored tensor");
  Expect(engine, id, 1);
  Check(spw_user_state(engine, &state, &bytes), "user state");
  Require(bytes == 6 && memcmp(state, "step 1", 6) == 0, "the user state is another");
  spw_free(state);
  AddOne(engine, id);
  Check(spw_commit(engine, "step 2", 6), "commit");
  Check(spw_restore(engine, "one"), "restore");
  Expect(engine, id, 1);
  Check(spw_snapshots_json(engine, &snapshots), "snapshots");
  Require(strstr(snapshots, "\"label\":\"one\"") != NULL, "the snapshot is not listed");
  spw_free(snapshots);
  spw_engine_release(engine);
  printf("consumer_c: spillway %s keeps what it was given\n", spw_version());
  return 0;
}
