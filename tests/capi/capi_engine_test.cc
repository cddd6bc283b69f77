// SPDX-License-Identifier: Apache-2.0
//
// Tests the engine through its C ABI: its operations, and its errors for invalid arguments.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/capi/capi_testing.h"

namespace spillway::test {
namespace {

using Json = nlohmann::json;

class CapiEngineTest : public CapiTest {};

int FillWithOffsets(void* user, uint64_t offset, void* out, size_t bytes) {
  ++*static_cast<int*>(user);
  auto* const values = static_cast<uint64_t*>(out);
  for (size_t i = 0; i < bytes / 8; ++i) values[i] = offset / 8 + i;
  return 0;
}

TEST_F(CapiEngineTest, RegistersReadsCommitsAndReopens) {
  const int64_t shape[] = {6, 1024};
  spw_tensor_spec spec;
  spw_tensor_spec_init(&spec, sizeof spec);
  spec.name = "w";
  spec.dtype = SPW_U8;
  spec.shape = shape;
  spec.rank = 2;
  spec.tile_rows = 2;
  int calls = 0;
  uint32_t id = 77;
  SPW_ASSERT_OK(spw_register(engine_, &spec, FillWithOffsets, &calls, &id));
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(Read<uint64_t>(id, 768)[700], 700u);
  uint32_t found = 78;
  SPW_EXPECT_OK(spw_find(engine_, "w", &found));
  EXPECT_EQ(found, id);
  uint64_t offset = 0, size = 0;
  SPW_EXPECT_OK(spw_tile_range(engine_, id, 2, &offset, &size));
  EXPECT_EQ(offset, 4096u);
  EXPECT_EQ(size, 2048u);
  char* json = nullptr;
  SPW_ASSERT_OK(spw_tensor_json(engine_, id, &json));
  const Json as = Json::parse(Taken(json));
  EXPECT_EQ(as["name"], "w");
  EXPECT_EQ(as["dtype"], "u8");
  EXPECT_EQ(as["shape"], Json({6, 1024}));
  EXPECT_EQ(as["num_tiles"], 3);

  SPW_EXPECT_OK(spw_end_step(engine_));
  SPW_EXPECT_OK(spw_wait_for_plan(engine_));
  SPW_ASSERT_OK(spw_commit(engine_, "a\0b", 3));
  Reopen();
  SPW_ASSERT_OK(spw_register(engine_, &spec, FillWithOffsets, &calls, &id));
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(Read<uint64_t>(id, 768)[700], 700u);
  void* state = nullptr;
  size_t bytes = 0;
  SPW_ASSERT_OK(spw_user_state(engine_, &state, &bytes));
  EXPECT_EQ(std::string(static_cast<char*>(state), bytes), std::string("a\0b", 3));
  spw_free(state);
}

TEST_F(CapiEngineTest, KeepsSnapshotsAndCountsCommits) {
  const uint32_t id = Register("w", SPW_F32, 2, 4);
  const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1}, twos[8] = {2, 2, 2, 2, 2, 2, 2, 2};
  SPW_ASSERT_OK(spw_write(engine_, id, 0, ones, sizeof ones));
  SPW_ASSERT_OK(spw_commit(engine_, "a\0b", 3));
  SPW_ASSERT_OK(spw_snapshot(engine_, "one"));
  SPW_ASSERT_OK(spw_write(engine_, id, 0, twos, sizeof twos));
  SPW_ASSERT_OK(spw_commit(engine_, nullptr, 0));
  char* json = nullptr;
  SPW_ASSERT_OK(spw_snapshots_json(engine_, &json));
  const Json list = Json::parse(Taken(json));
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["label"], "one");
  EXPECT_EQ(list[0]["number"], 1);
  void* state = nullptr;
  size_t bytes = 0;
  SPW_ASSERT_OK(spw_snapshot_user_state(engine_, "one", &state, &bytes));
  EXPECT_EQ(std::string(static_cast<char*>(state), bytes), std::string("a\0b", 3));
  spw_free(state);
  SPW_EXPECT_ERROR(spw_snapshot_user_state(engine_, "two", &state, &bytes), SPW_NOT_FOUND, "two");
  SPW_ASSERT_OK(spw_restore(engine_, "one"));
  EXPECT_EQ(Read<float>(id, 8)[7], 1.0f);
  uint64_t number = 0;
  SPW_ASSERT_OK(spw_commit_number(engine_, &number));
  EXPECT_EQ(number, 3u);
  SPW_EXPECT_OK(spw_drop(engine_, "one"));
  SPW_EXPECT_ERROR(spw_drop(engine_, "one"), SPW_NOT_FOUND, "one");
  char* store = nullptr;
  SPW_ASSERT_OK(spw_store_id(engine_, &store));
  EXPECT_EQ(Taken(store).size(), 32u);
}

TEST_F(CapiEngineTest, ReadsSnapshotsWithoutAnEngine) {
  const uint32_t id = Register("w", SPW_F32, 3, 2);
  Register("zeros", SPW_F32, 3, 2);
  const float ones[6] = {1, 2, 3, 4, 5, 6}, twos[6] = {7, 7, 7, 7, 7, 7};
  SPW_ASSERT_OK(spw_write(engine_, id, 0, ones, sizeof ones));
  SPW_ASSERT_OK(spw_commit(engine_, "a\0b", 3));
  SPW_ASSERT_OK(spw_snapshot(engine_, "one"));
  SPW_ASSERT_OK(spw_write(engine_, id, 0, twos, sizeof twos));
  SPW_ASSERT_OK(spw_commit(engine_, nullptr, 0));
  char* store_id = nullptr;
  SPW_ASSERT_OK(spw_store_id(engine_, &store_id));
  spw_engine_release(engine_);
  engine_ = nullptr;

  const std::string store = folder_ / "s", none = folder_ / "none";
  const char *const folders[] = {store.c_str()}, *const missing[] = {none.c_str()};
  spw_store_reader* reader = nullptr;
  SPW_EXPECT_ERROR(spw_store_reader_open(missing, 1, &reader), SPW_NOT_FOUND, "none");
  SPW_ASSERT_OK(spw_store_reader_open(folders, 1, &reader));
  char* same_id = nullptr;
  SPW_ASSERT_OK(spw_store_reader_id(reader, &same_id));
  EXPECT_EQ(Taken(same_id), Taken(store_id));
  void* state = nullptr;
  size_t bytes = 0;
  SPW_ASSERT_OK(spw_store_reader_user_state(reader, "one", &state, &bytes));
  EXPECT_EQ(std::string(static_cast<char*>(state), bytes), std::string("a\0b", 3));
  spw_free(state);
  SPW_EXPECT_ERROR(spw_store_reader_user_state(reader, "two", &state, &bytes), SPW_NOT_FOUND,
                   "two");

  const int64_t shape[] = {3, 2};
  spw_tensor_spec spec;
  spw_tensor_spec_init(&spec, sizeof spec);
  spec.name = "w";
  spec.shape = shape;
  spec.rank = 2;
  spec.tile_rows = 1;
  std::vector<float> values(6, -1.0f);
  SPW_ASSERT_OK(spw_store_reader_read(reader, "one", &spec, values.data(), 24));
  EXPECT_EQ(values, std::vector<float>(ones, ones + 6));
  spec.name = "zeros";
  SPW_ASSERT_OK(spw_store_reader_read(reader, "one", &spec, values.data(), 24));
  EXPECT_EQ(values, std::vector<float>(6, 0.0f));
  SPW_EXPECT_ERROR(spw_store_reader_read(reader, "one", &spec, values.data(), 20),
                   SPW_INVALID_ARGUMENT, "24 bytes");
  spec.tile_rows = 2;
  SPW_EXPECT_ERROR(spw_store_reader_read(reader, "one", &spec, values.data(), 24),
                   SPW_INVALID_ARGUMENT, "is read as");
  spec.name = "v";
  SPW_EXPECT_ERROR(spw_store_reader_read(reader, "one", &spec, values.data(), 24), SPW_NOT_FOUND,
                   "'v'");
  spw_store_reader_release(reader);
}

TEST_F(CapiEngineTest, TellsStatsAndTimelineAsJson) {
  Register("w", SPW_F32, 2, 4);
  char* json = nullptr;
  SPW_ASSERT_OK(spw_stats_json(engine_, &json));
  const Json stats = Json::parse(Taken(json));
  EXPECT_EQ(stats["device"], "host");
  EXPECT_TRUE(stats["tiers"]["pinned"]["now_bytes"].is_number());
  EXPECT_TRUE(stats["role_nvme"]["master_weight"].is_object());
  EXPECT_TRUE(stats["plan"]["plans"].is_number());
  SPW_ASSERT_OK(spw_take_timeline_json(engine_, &json));
  EXPECT_TRUE(Json::parse(Taken(json))["events"].is_array());
  EXPECT_EQ(spw_page_bytes(engine_), 4096u);
}

TEST_F(CapiEngineTest, AReaderThatFailsIsTold) {
  spw_tensor_spec spec;
  spw_tensor_spec_init(&spec, sizeof spec);
  const int64_t shape[] = {8};
  spec.name = "short";
  spec.shape = shape;
  spec.rank = 1;
  uint32_t id = 5;
  const auto fails = [](void*, uint64_t, void*, size_t) { return 42; };
  SPW_EXPECT_ERROR(spw_register(engine_, &spec, fails, nullptr, &id), SPW_CANCELLED,
                   "tensor 'short': its reader returned 42 for 32 bytes at offset 0");
  EXPECT_EQ(id, 5u);
  SPW_EXPECT_ERROR(spw_find(engine_, "short", &id), SPW_NOT_FOUND, "short");
}

TEST_F(CapiEngineTest, AConfirmedReaderFailsUnlessItSaysThatItIsDone) {
  spw_tensor_spec spec;
  spw_tensor_spec_init(&spec, sizeof spec);
  const int64_t shape[] = {3, 8};
  spec.name = "w";
  spec.shape = shape;
  spec.rank = 2;
  spec.tile_rows = 1;
  struct Filler {
    spw_confirmed_reader reader;
    uint64_t broken_off_at;
  };
  const auto fill = [](void* user, uint64_t offset, void* out, size_t bytes) {
    auto& filler = *static_cast<Filler*>(user);
    if (offset == filler.broken_off_at) return 0;
    std::memset(out, 7, bytes);
    filler.reader.is_done = 1;
    return 42;
  };
  Filler filler{{fill, &filler, 0}, 32};
  uint32_t id = 5;
  SPW_EXPECT_ERROR(spw_register(engine_, &spec, spw_read_confirmed, &filler.reader, &id),
                   SPW_CANCELLED, "tensor 'w': its reader returned 1 for 32 bytes at offset 32");
  SPW_EXPECT_ERROR(spw_find(engine_, "w", &id), SPW_NOT_FOUND, "w");
  filler.broken_off_at = 96;
  SPW_ASSERT_OK(spw_register(engine_, &spec, spw_read_confirmed, &filler.reader, &id));
  EXPECT_EQ(Read<uint8_t>(id, 96)[95], 7);
}

TEST_F(CapiEngineTest, ATensorIsForgottenByNameWhateverItIs) {
  Register("w", SPW_F32, 2, 4);
  SPW_ASSERT_OK(spw_commit(engine_, nullptr, 0));
  Reopen();
  SPW_ASSERT_OK(spw_forget(engine_, "w"));  // it is in the last commit but not registered
  const uint32_t other = Register("w", SPW_BF16, 3, 4);
  SPW_ASSERT_OK(spw_commit(engine_, nullptr, 0));
  SPW_ASSERT_OK(spw_forget(engine_, "w"));
  SPW_EXPECT_ERROR(spw_evict(engine_, other, 0), SPW_NOT_FOUND, "was unregistered");
  SPW_EXPECT_ERROR(spw_forget(engine_, "w"), SPW_NOT_FOUND, "'w'");
}

TEST_F(CapiEngineTest, ArgumentsThatAreNoneAreNamed) {
  uint32_t id = 0;
  spw_engine* engine = nullptr;
  spw_engine_options options = {};
  SPW_EXPECT_ERROR(spw_engine_open(nullptr, &engine), SPW_INVALID_ARGUMENT,
                   "spw_engine_options is NULL");
  SPW_EXPECT_ERROR(spw_engine_open(&options, &engine), SPW_INVALID_ARGUMENT,
                   "spw_engine_options.size is 0: call spw_engine_options_init first");
  spw_engine_options_init(&options, sizeof options);
  SPW_EXPECT_ERROR(spw_engine_open(&options, nullptr), SPW_INVALID_ARGUMENT, "engine is NULL");
  options.mode = 9;
  SPW_EXPECT_ERROR(spw_engine_open(&options, &engine), SPW_INVALID_ARGUMENT,
                   "mode is 9: it must be from 0 to 2");
  options.mode = SPW_CREATE;
  options.num_store = 1;
  SPW_EXPECT_ERROR(spw_engine_open(&options, &engine), SPW_INVALID_ARGUMENT, "store is NULL");
  SPW_EXPECT_ERROR(spw_register(nullptr, nullptr, nullptr, nullptr, &id), SPW_INVALID_ARGUMENT,
                   "engine is NULL");
  spw_tensor_spec spec;
  spw_tensor_spec_init(&spec, sizeof spec);
  SPW_EXPECT_ERROR(spw_register(engine_, &spec, nullptr, nullptr, &id), SPW_INVALID_ARGUMENT,
                   "name is NULL");
  spec.name = "v";
  spec.dtype = -1;
  SPW_EXPECT_ERROR(spw_register(engine_, &spec, nullptr, nullptr, &id), SPW_INVALID_ARGUMENT,
                   "dtype is -1");
  SPW_EXPECT_ERROR(spw_unregister(engine_, 99), SPW_INVALID_ARGUMENT, "99");
  char* json = nullptr;
  SPW_EXPECT_ERROR(spw_tensor_json(engine_, 99, &json), SPW_INVALID_ARGUMENT, "99");
  const uint32_t known = Register("w", SPW_F32, 2, 4);
  SPW_EXPECT_ERROR(spw_tile_range(engine_, known, 1ull << 40, nullptr, nullptr),
                   SPW_INVALID_ARGUMENT, "has 2 tiles");
  SPW_EXPECT_ERROR(spw_discard(engine_, known, 0), SPW_INVALID_ARGUMENT, "is not transient");
  SPW_EXPECT_ERROR(spw_commit(engine_, nullptr, 3), SPW_INVALID_ARGUMENT, "user_state is NULL");
  SPW_EXPECT_ERROR(spw_snapshot(engine_, nullptr), SPW_INVALID_ARGUMENT, "label is NULL");
  spw_engine_release(nullptr);
  spw_lease_release(nullptr, nullptr);
  spw_stream_release(nullptr);
  spw_status_free(nullptr);
  EXPECT_STREQ(spw_status_message(nullptr), "");
}

// Models a program that was compiled against an older header, whose struct ends earlier.
TEST_F(CapiEngineTest, AStructMayBeShorterThanTheLibrarys) {
  struct {
    size_t size;
    const char* const* store;
    size_t num_store;
    int32_t mode, io;
    uint64_t beyond;
  } older;
  constexpr size_t kSize = offsetof(decltype(older), beyond);
  older.beyond = 0xABCDEF;
  spw_engine_options_init(reinterpret_cast<spw_engine_options*>(&older), kSize);
  EXPECT_EQ(older.size, kSize);
  EXPECT_EQ(older.beyond, 0xABCDEFu);
  spw_engine* engine = nullptr;
  SPW_ASSERT_OK(spw_engine_open(reinterpret_cast<spw_engine_options*>(&older), &engine));
  spw_engine_release(engine);
}

TEST_F(CapiEngineTest, HandlesAreCounted) {
  EXPECT_EQ(spw_engine_retain(engine_), engine_);
  spw_engine_release(engine_);
  uint32_t id = Register("w", SPW_F32, 2, 4);
  spw_lease* lease = nullptr;
  SPW_ASSERT_OK(spw_acquire(engine_, id, 1, SPW_READ_WRITE, nullptr, &lease));
  spw_stream* stream = nullptr;
  SPW_ASSERT_OK(spw_stream_create(engine_, &stream));
  spw_engine_release(engine_);  // the lease and the stream keep the engine alive
  static_cast<float*>(spw_lease_data(lease))[0] = 7;
  spw_stream_release(stream);
  spw_lease_release(lease, nullptr);
  engine_ = Open(SPW_OPEN_OR_CREATE);  // the store is free only if the engine is destroyed
}

TEST_F(CapiEngineTest, CallsFromManyThreadsEndWell) {
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  const uint32_t shared = Register("shared", SPW_F32, 2, 256);
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([this, number, shared] {
      const std::string name = "own." + std::to_string(number);
      for (int round = 0; round < 10; ++round) {
        const uint32_t id = Register((name + "." + std::to_string(round)).c_str(), SPW_F32, 2, 256);
        std::vector<float> values(512, 1.0f);
        SPW_EXPECT_OK(spw_add(engine_, id, values.data(), SPW_F32, 2.0));
        SPW_EXPECT_OK(spw_add(engine_, shared, values.data(), SPW_F32, 1.0));
        EXPECT_EQ(Read<float>(id, 512)[511], 2.0f);
        SPW_EXPECT_OK(spw_end_step(engine_));
        const int code = Of(spw_commit(engine_, nullptr, 0)).code;
        EXPECT_TRUE(code == SPW_OK || code == SPW_FAILED_PRECONDITION) << code;
        char* json = nullptr;
        SPW_EXPECT_OK(spw_stats_json(engine_, &json));
        spw_free(json);
        SPW_EXPECT_OK(spw_unregister(engine_, id));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Read<float>(shared, 512)[0], float{10 * kThreads});
}

}  // namespace
}  // namespace spillway::test
