// SPDX-License-Identifier: Apache-2.0
//
// Makes the files for the tests of the readers, byte by byte and independently of the writers under
// test, so that a test can make one place wrong and keep all others right.

#ifndef SPILLWAY_TESTS_HF_TEST_FILES_H_
#define SPILLWAY_TESTS_HF_TEST_FILES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/temp_folder.h"

namespace spillway::hf {

using test::FilesIn;
using test::ReadFile;
using test::TempFolder;
using test::WriteFile;

// Returns the `bytes` low bytes of `value`, little endian.
inline std::string LittleEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

inline std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  return LittleEndian(header.size(), 8) + std::string(header) + std::string(data);
}

// Returns a file with one tensor of each supported type:
// "a" F32 [2, 3], "b" F16 [2], "c" BF16 [1, 2, 2].
inline std::string ValidSafetensors() {
  const std::vector<float> a = {0.5f, -1.0f, 2.0f, 3.25f, -4.0f, 1e-30f};
  const std::vector<uint16_t> b = {0x3c00, 0xc000};                  // 1, -2
  const std::vector<uint16_t> c = {0x3f80, 0xbf80, 0x4049, 0x0000};  // 1, -1, 3.140625, 0
  return SafetensorsBytes(R"({"__metadata__":{"format":"pt"},)"
                          R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                          R"("c":{"dtype":"BF16","shape":[1,2,2],"data_offsets":[28,36]},)"
                          R"("b":{"dtype":"F16","shape":[2],"data_offsets":[24,28]}}  )",
                          BytesOf(a) + BytesOf(b) + BytesOf(c));
}

inline std::string NpyBytes(std::string_view dict, std::string_view data, int major = 1) {
  return "\x93NUMPY" + std::string(1, static_cast<char>(major)) + std::string(1, '\0') +
         LittleEndian(dict.size(), major == 1 ? 2 : 4) + std::string(dict) + std::string(data);
}

inline std::string ValidNpy() {
  return NpyBytes("{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }        \n",
                  BytesOf(std::vector<uint16_t>{7, 0, 65535, 258, 1}));
}

// Returns the published config of SmolLM2-135M.
inline std::string ValidConfig() {
  return R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,)"
         R"("bos_token_id":0,"eos_token_id":0,"hidden_act":"silu","hidden_size":576,"initializer_range":0.041666,)"
         R"("intermediate_size":1536,"is_llama_config":true,"max_position_embeddings":8192,"model_type":"llama",)"
         R"("num_attention_heads":9,"num_hidden_layers":30,"num_key_value_heads":3,"pretraining_tp":1,)"
         R"("rms_norm_eps":1e-05,"rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,)"
         R"("tie_word_embeddings":true,"torch_dtype":"bfloat16","use_cache":true,"vocab_size":49152})";
}

}  // namespace spillway::hf

#endif  // SPILLWAY_TESTS_HF_TEST_FILES_H_
