// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/npy.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/hf/status_matchers.h"
#include "tests/hf/test_files.h"

namespace spillway::hf {
namespace {

constexpr char kDict[] = "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }\n";

TEST(NpyFile, ReadsWindowsOfUint16) {
  const TempFolder folder;
  const auto file = NpyFile::Open(WriteFile(folder / "t.npy", ValidNpy()));
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ((*file)->num_elements(), 5u);
  std::vector<int32_t> all(5), window(2);
  ASSERT_THAT((*file)->Read(0, all), IsOk());
  EXPECT_EQ(all, (std::vector<int32_t>{7, 0, 65535, 258, 1}));
  ASSERT_THAT((*file)->Read(2, window), IsOk());
  EXPECT_EQ(window, (std::vector<int32_t>{65535, 258}));
  EXPECT_THAT((*file)->Read(5, std::span<int32_t>()), IsOk());
  EXPECT_THAT((*file)->Read(4, window), IsInvalid("has 5 tokens; asked for 2 from 4"));
  EXPECT_THAT((*file)->Read(~uint64_t{0}, window), IsInvalid("asked for 2 from"));
}

TEST(NpyFile, ReadsLongWindowsAcrossItsBuffer) {
  std::vector<uint16_t> ids(20'000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>(i * 7);
  const TempFolder folder;
  const auto file = NpyFile::Open(WriteFile(
      folder / "t.npy",
      NpyBytes("{'descr': '<u2', 'fortran_order': False, 'shape': (20000,), }\n", BytesOf(ids))));
  ASSERT_THAT(file, IsOk());
  std::vector<int32_t> out(19'999);
  ASSERT_THAT((*file)->Read(1, out), IsOk());
  EXPECT_EQ(out, std::vector<int32_t>(ids.begin() + 1, ids.end()));
}

TEST(NpyFile, ReadsUint32AndVersionTwo) {
  const TempFolder folder;
  const auto file = NpyFile::Open(WriteFile(
      folder / "t.npy", NpyBytes("{'descr': '<u4', 'fortran_order': False, 'shape': (2,), }\n",
                                 BytesOf(std::vector<uint32_t>{100'000, 0x80000000u}), 2)));
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ((*file)->element_bytes(), 4u);
  std::vector<int32_t> out(2);
  ASSERT_THAT((*file)->Read(0, std::span(out).first(1)), IsOk());
  EXPECT_EQ(out[0], 100'000);
  EXPECT_THAT((*file)->Read(0, out),
              IsInvalid("token 1 is 2147483648; at most 2147483647 is possible"));
}

TEST(NpyFile, EveryTruncationAndAByteMoreAreErrors) {
  const TempFolder folder;
  const std::string whole = ValidNpy();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(NpyFile::Open(WriteFile(folder / "t", whole.substr(0, size))),
                IsInvalid((folder / "t").c_str()))
        << size;
  }
  EXPECT_THAT(NpyFile::Open(WriteFile(folder / "t", whole + "x")),
              IsInvalid("holds 11 bytes of data"));
}

TEST(NpyFile, OtherFilesAndVersionsAreRefused) {
  const TempFolder folder;
  const std::string data(6, '\0');
  EXPECT_THAT(NpyFile::Open(WriteFile(folder / "t", "not an npy file")), IsInvalid("magic"));
  EXPECT_THAT(NpyFile::Open(WriteFile(folder / "t", NpyBytes(kDict, data, 3))),
              IsInvalid("version 3.0"));
  EXPECT_THAT(NpyFile::Open(WriteFile(folder / "t", NpyBytes(kDict, data, 0))),
              IsInvalid("version 0.0"));
  EXPECT_THAT(NpyFile::Open(WriteFile(
                  folder / "t", "\x93NUMPY\x02" + std::string(1, '\0') + "\xff\xff\xff\xff{}")),
              IsInvalid("gives its NPY header 4294967295 bytes"));
  EXPECT_THAT(NpyFile::Open(folder / "none"), IsError(absl::StatusCode::kNotFound, "none"));
}

TEST(NpyFile, ALengthThatOverflowsIsAnError) {
  const TempFolder folder;
  for (const char* length :
       {"9223372036854775808", "18446744073709551615", "9223372036854775811"}) {
    const std::string dict =
        "{'descr': '<u2', 'fortran_order': False, 'shape': (" + std::string(length) + ",), }\n";
    EXPECT_THAT(NpyFile::Open(WriteFile(folder / "t", NpyBytes(dict, "123456"))),
                IsInvalid("its header says"));
  }
}

TEST(NpyHeader, AcceptsWhatNumPyWrites) {
  for (const char* dict :
       {kDict, "{'shape': (3,), 'fortran_order': False, 'descr': '<u2'}",
        "{ \"descr\" : \"<u2\" , \"fortran_order\" : False , \"shape\" : ( 3 , ) , }     \n"}) {
    const auto header = ParseNpyHeader(dict, "file");
    ASSERT_THAT(header, IsOk()) << dict;
    EXPECT_EQ(header->num_elements, 3u);
    EXPECT_EQ(header->element_bytes, 2u);
  }
}

TEST(NpyHeader, RefusesEverythingElse) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", "has no '{'"},
      {"{", "has no string"},
      {"{}", "lacks one of"},
      {"{'descr': '<u2', 'fortran_order': False, }", "lacks one of"},
      {"{'descr': '>u2', 'fortran_order': False, 'shape': (3,), }", "has type \">u2\""},
      {"{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }", "has type \"<i2\""},
      {"{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (3,), }", "describes a record"},
      {"{'descr': '<u2', 'fortran_order': True, 'shape': (3,), }", "Fortran order"},
      {"{'descr': '<u2', 'fortran_order': 0, 'shape': (3,), }", "no False for fortran_order"},
      {"{'descr': '<u2', 'fortran_order': False, 'shape': (), }", "no length"},
      {"{'descr': '<u2', 'fortran_order': False, 'shape': (3), }", "has no ','"},
      {"{'descr': '<u2', 'fortran_order': False, 'shape': (-3,), }", "no length"},
      {"{'descr': '<u2', 'fortran_order': False, 'shape': (3,4), }", "more than one dimension"},
      {"{'descr': '<u2', 'fortran_order': False, 'shape': (18446744073709551616,), }",
       "no length in 64 bits"},
      {"{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (3,), }",
       "a second time"},
      {"{'descr': '<u2', 'fortran_order': False, 'shape': (3,), 'more': 1}", "\"more\", unknown"},
      {"{'descr': '<u2', 'fortran_order': False, 'shape': (3,), } x", "text after"},
      {"{'descr': '<u2' 'fortran_order': False, 'shape': (3,), }", "has no '}'"},
      {"{'descr: '<u2', 'fortran_order': False, 'shape': (3,), }", "has no ':'"},
  };
  for (const auto& [dict, message] : cases)
    EXPECT_THAT(ParseNpyHeader(dict, "file"), IsInvalid(message)) << dict;
}

}  // namespace
}  // namespace spillway::hf
