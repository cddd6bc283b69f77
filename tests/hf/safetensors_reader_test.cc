// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/safetensors_reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "src/base/half_floats.h"
#include "tests/hf/status_matchers.h"
#include "tests/hf/test_files.h"

namespace spillway::hf {
namespace {

TEST(SafetensorsFile, ReadsEveryTypeAsFp32) {
  const TempFolder folder;
  const auto file = SafetensorsFile::Open(WriteFile(folder / "m", ValidSafetensors()));
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ((*file)->tensors().size(), 3u);
  std::vector<float> a(6), b(2), c(4);
  ASSERT_THAT((*file)->Read("a", 0, a), IsOk());
  ASSERT_THAT((*file)->Read("b", 0, b), IsOk());
  ASSERT_THAT((*file)->Read("c", 0, c), IsOk());
  EXPECT_EQ(a, (std::vector<float>{0.5f, -1.0f, 2.0f, 3.25f, -4.0f, 1e-30f}));
  EXPECT_EQ(b, (std::vector<float>{1.0f, -2.0f}));
  EXPECT_EQ(c, (std::vector<float>{1.0f, -1.0f, 3.140625f, 0.0f}));
}

TEST(SafetensorsFile, AnyPieceOfALargeTensorIsThatPieceOfTheWhole) {
  const size_t kElements = 20'011;  // more than the reader converts at once, and odd
  std::vector<uint16_t> stored(kElements);
  for (size_t i = 0; i < kElements; ++i) stored[i] = static_cast<uint16_t>(i % 0x7c00);
  const TempFolder folder;
  const auto file = SafetensorsFile::Open(WriteFile(
      folder / "m",
      SafetensorsBytes(R"({"t":{"dtype":"F16","shape":[20011],"data_offsets":[0,40022]}})",
                       BytesOf(stored))));
  ASSERT_THAT(file, IsOk());
  for (const auto& [begin, count] : std::vector<std::pair<size_t, size_t>>{
           {0, kElements}, {1, 1}, {8191, 2}, {8192, 8192}, {17, 16'400}, {kElements, 0}}) {
    std::vector<float> out(count);
    ASSERT_THAT((*file)->Read("t", begin, out), IsOk());
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], base::HalfToFloat(stored[begin + i]));
  }
}

TEST(SafetensorsFile, DoublesAreRoundedToFp32) {
  const size_t kElements = 20'011;  // more than the reader converts at once, and odd
  std::vector<double> stored(kElements);
  for (size_t i = 0; i < kElements; ++i) stored[i] = 1.0 / static_cast<double>(i + 1);
  stored[0] = 1e39;  // too large for fp32
  stored[1] = -1e39;
  stored[2] = 1e-50;
  const TempFolder folder;
  const auto file = SafetensorsFile::Open(WriteFile(
      folder / "m",
      SafetensorsBytes(R"({"t":{"dtype":"F64","shape":[20011],"data_offsets":[0,160088]}})",
                       BytesOf(stored))));
  ASSERT_THAT(file, IsOk());
  std::vector<float> all(kElements), piece(1000);
  ASSERT_THAT((*file)->Read("t", 0, all), IsOk());
  ASSERT_THAT((*file)->Read("t", 7777, piece), IsOk());
  EXPECT_EQ(all[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(all[1], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(all[2], 0.0f);
  for (size_t i = 3; i < kElements; ++i) ASSERT_EQ(all[i], static_cast<float>(stored[i])) << i;
  EXPECT_EQ(piece, std::vector<float>(all.begin() + 7777, all.begin() + 8777));
}

TEST(SafetensorsFile, WhatCannotBeReadIsNamed) {
  const TempFolder folder;
  const auto file = SafetensorsFile::Open(WriteFile(
      folder / "m", SafetensorsBytes(R"({"i":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},)"
                                     R"("f":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
                                     std::string(16, '\0'))));
  ASSERT_THAT(file, IsOk());
  std::vector<float> out(2);
  EXPECT_THAT((*file)->Read("i", 0, out),
              IsInvalid("tensor \"i\" has type \"I32\"; F32, F16, BF16 and F64 are supported"));
  EXPECT_THAT((*file)->Read("x", 0, out), IsError(absl::StatusCode::kNotFound, "no tensor \"x\""));
  EXPECT_THAT((*file)->Read("f", 1, out), IsInvalid("has 2 elements; asked for 2 from 1"));
  EXPECT_THAT((*file)->Read("f", ~uint64_t{0}, out),
              IsInvalid("asked for 2 from 18446744073709551615"));
}

TEST(SafetensorsFile, EveryTruncationIsAnError) {
  const TempFolder folder;
  const std::string whole = ValidSafetensors();
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto file = SafetensorsFile::Open(WriteFile(folder / "m", whole.substr(0, size)));
    EXPECT_THAT(file, IsInvalid((folder / "m").c_str())) << size;
  }
  EXPECT_THAT(SafetensorsFile::Open(WriteFile(folder / "m", whole + "x")),
              IsInvalid("bytes of data"));
}

TEST(SafetensorsFile, ALyingHeaderLengthIsAnError) {
  const TempFolder folder;
  for (uint64_t length : {uint64_t{3}, uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    const auto file =
        SafetensorsFile::Open(WriteFile(folder / "m", LittleEndian(length, 8) + "{}"));
    EXPECT_THAT(file, IsInvalid("at most 2 are possible")) << length;
  }
}

TEST(SafetensorsFile, AHeaderAboveTheLimitIsAnErrorHoweverLargeTheFile) {
  const TempFolder folder;
  const std::string path =
      WriteFile(folder / "m", LittleEndian(kMaxSafetensorsHeaderBytes + 1, 8) + "{}");
  std::filesystem::resize_file(path, 200'000'000);  // sparse
  EXPECT_THAT(SafetensorsFile::Open(path), IsInvalid("at most 100000000 are possible"));
}

TEST(SafetensorsFile, AFileThatShrinksWhileOpenIsAnError) {
  const TempFolder folder;
  const std::string path = WriteFile(folder / "m", ValidSafetensors());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_THAT(file, IsOk());
  std::filesystem::resize_file(path, 200);
  std::vector<float> a(6);
  EXPECT_THAT((*file)->Read("a", 0, a),
              IsError(absl::StatusCode::kFailedPrecondition, "bytes early"));
}

TEST(SafetensorsFile, AMissingFileAFolderAndAPipeAreNamed) {
  const TempFolder folder;
  EXPECT_THAT(SafetensorsFile::Open(folder / "none"),
              IsError(absl::StatusCode::kNotFound, "/none: cannot be opened"));
  EXPECT_THAT(SafetensorsFile::Open(folder.path()),
              IsError(absl::StatusCode::kFailedPrecondition, "not a regular file"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsFile::Open(folder / "pipe"),
              IsError(absl::StatusCode::kFailedPrecondition, "not a regular file"));
}

}  // namespace
}  // namespace spillway::hf
