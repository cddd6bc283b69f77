// SPDX-License-Identifier: Apache-2.0
//
// Helpers for the tests of the C ABI: macros that check a status and free it, and a fixture that
// holds an engine in a temporary folder.

#ifndef SPILLWAY_TESTS_CAPI_CAPI_TESTING_H_
#define SPILLWAY_TESTS_CAPI_CAPI_TESTING_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/spillway.h"
#include "tests/temp_folder.h"

namespace spillway::test {

struct Answer {
  int code = SPW_OK;
  std::string message;
};

// Returns the code and message of `status`, and frees it.
inline Answer Of(spw_status* status) {
  Answer answer{spw_status_code(status), spw_status_message(status)};
  spw_status_free(status);
  return answer;
}

#define SPW_EXPECT_OK(call)                                                 \
  do {                                                                      \
    const ::spillway::test::Answer spw_answer = ::spillway::test::Of(call); \
    EXPECT_EQ(spw_answer.code, SPW_OK) << spw_answer.message;               \
  } while (false)
#define SPW_ASSERT_OK(call)                                                 \
  do {                                                                      \
    const ::spillway::test::Answer spw_answer = ::spillway::test::Of(call); \
    ASSERT_EQ(spw_answer.code, SPW_OK) << spw_answer.message;               \
  } while (false)
#define SPW_EXPECT_ERROR(call, expected_code, part)                                    \
  do {                                                                                 \
    const ::spillway::test::Answer spw_answer = ::spillway::test::Of(call);            \
    EXPECT_EQ(spw_answer.code, expected_code) << spw_answer.message;                   \
    EXPECT_NE(spw_answer.message.find(part), std::string::npos) << spw_answer.message; \
  } while (false)

// Returns a copy of `text`, which a call returned, and frees it.
inline std::string Taken(char* text) {
  std::string copy = text;
  spw_free(text);
  return copy;
}

class CapiTest : public testing::Test {
 protected:
  CapiTest() { engine_ = Open(SPW_CREATE); }
  ~CapiTest() override { spw_engine_release(engine_); }

  spw_engine* Open(int32_t mode) {
    const std::string store = folder_ / "s";
    const char* const folders[] = {store.c_str()};
    spw_engine_options options;
    spw_engine_options_init(&options, sizeof options);
    options.store = folders;
    options.num_store = 1;
    options.mode = mode;
    options.device_bytes = 1 << 20;
    options.pinned_bytes = 1 << 20;
    options.page_bytes = 4096;
    spw_engine* engine = nullptr;
    SPW_EXPECT_OK(spw_engine_open(&options, &engine));
    return engine;
  }
  void Reopen() {
    spw_engine_release(engine_);
    engine_ = Open(SPW_OPEN_OR_CREATE);
  }
  // Registers a tensor of `rows` rows and `columns` columns. Each row is a tile.
  uint32_t Register(const char* name, int32_t dtype, int64_t rows, int64_t columns,
                    int32_t transient = 0) {
    const int64_t shape[] = {rows, columns};
    spw_tensor_spec spec;
    spw_tensor_spec_init(&spec, sizeof spec);
    spec.name = name;
    spec.dtype = dtype;
    spec.shape = shape;
    spec.rank = 2;
    spec.tile_rows = 1;
    spec.transient = transient;
    uint32_t id = 0;
    SPW_EXPECT_OK(spw_register(engine_, &spec, nullptr, nullptr, &id));
    return id;
  }
  template <class T>
  std::vector<T> Read(uint32_t id, size_t count) {
    std::vector<T> values(count);
    SPW_EXPECT_OK(spw_read(engine_, id, 0, values.data(), count * sizeof(T)));
    return values;
  }

  TempFolder folder_;
  spw_engine* engine_ = nullptr;
};

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_CAPI_CAPI_TESTING_H_
