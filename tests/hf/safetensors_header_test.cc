// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/safetensors_header.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/hf/status_matchers.h"

namespace spillway::hf {
namespace {

// Parses `header` as the header of a file with `data_bytes` bytes of data.
absl::StatusOr<std::vector<TensorEntry>> Parse(const std::string& header, uint64_t data_bytes) {
  return ParseSafetensorsHeader(header, kSafetensorsLengthBytes + header.size() + data_bytes,
                                "file");
}

// Returns a header of one tensor "t".
std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(SafetensorsHeader, EntriesComeInTheOrderOfTheirData) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F16","shape":[3,2],"data_offsets":[4,16]},)"
      R"("y":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";
  const auto entries = Parse(header, 16);
  ASSERT_THAT(entries, IsOk());
  ASSERT_EQ(entries->size(), 2u);
  const TensorEntry& y = entries->front();
  EXPECT_EQ(y.name, "y");
  EXPECT_EQ(y.dtype, TensorDType::kF32);
  EXPECT_TRUE(y.shape.empty());
  EXPECT_EQ(y.num_elements, 1u);
  EXPECT_EQ(y.file_offset, 8 + header.size());
  const TensorEntry& x = entries->back();
  EXPECT_EQ(x.shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(x.num_elements, 6u);
  EXPECT_EQ(x.size_bytes, 12u);
  EXPECT_EQ(x.file_offset, 8 + header.size() + 4);
}

TEST(SafetensorsHeader, NoTensorsAndEmptyTensorsAreValid) {
  EXPECT_THAT(Parse("{}", 0), IsOk());
  EXPECT_THAT(Parse("{}      ", 0), IsOk());
  EXPECT_THAT(Parse(One("F32", "[0,7]", "[0,0]"), 0), IsOk());
}

TEST(SafetensorsHeader, AnEmptyTensorMayShareItsPlace) {
  EXPECT_THAT(Parse(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                    R"("c":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
                    4),
              IsOk());
}

TEST(SafetensorsHeader, AnotherTypeIsListedButNotSupported) {
  const auto entries = Parse(One("I64", "[2]", "[0,16]"), 16);
  ASSERT_THAT(entries, IsOk());
  EXPECT_FALSE(entries->front().dtype.has_value());
  EXPECT_EQ(entries->front().dtype_name, "I64");
  EXPECT_THAT(Parse(One("I64", "[2]", "[0,8]"), 8), IsInvalid("needs 16"));
  EXPECT_THAT(Parse(One("F4", "[3]", "[0,1]"), 1), IsInvalid("not a possible number of bytes"));
}

TEST(SafetensorsHeader, ANameTwiceIsAnError) {
  EXPECT_THAT(Parse(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                    4),
              IsInvalid("holds the name \"t\" twice"));
  EXPECT_THAT(Parse(R"({"t":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
              IsInvalid("holds the name \"dtype\" twice"));
  // The same name is spelled in two ways.
  EXPECT_THAT(Parse(R"({"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                    "\"\\u0074\""
                    R"(:{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
                    0),
              IsInvalid("twice"));
}

TEST(SafetensorsHeader, DataMustBeCoveredOnce) {
  const auto two = [](const char* a, const char* b) {
    return std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)") + a +
           R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + b + "}}";
  };
  EXPECT_THAT(Parse(two("[0,4]", "[4,8]"), 8), IsOk());
  EXPECT_THAT(Parse(two("[0,4]", "[0,4]"), 4), IsInvalid("inside the tensor before it"));
  EXPECT_THAT(Parse(two("[0,4]", "[2,6]"), 6), IsInvalid("inside the tensor before it"));
  EXPECT_THAT(Parse(two("[0,4]", "[5,9]"), 9), IsInvalid("after a hole from 4"));
  EXPECT_THAT(Parse(two("[1,5]", "[5,9]"), 9), IsInvalid("after a hole from 0"));
  EXPECT_THAT(Parse(two("[0,4]", "[4,8]"), 9), IsInvalid("holds 9 bytes of data"));
  EXPECT_THAT(Parse(two("[0,4]", "[4,8]"), 7), IsInvalid("leave the file's 7 bytes"));
  EXPECT_THAT(Parse("{}", 1), IsInvalid("end at data byte 0"));
}

TEST(SafetensorsHeader, SizeMustFollowFromTypeAndShape) {
  EXPECT_THAT(Parse(One("F32", "[2]", "[0,4]"), 4),
              IsInvalid("data_offsets span 4 bytes; shape [2] of F32 needs 8"));
  EXPECT_THAT(Parse(One("F16", "[2]", "[0,8]"), 8), IsInvalid("needs 4"));
  EXPECT_THAT(Parse(One("F32", "[2]", "[8,0]"), 8), IsInvalid("leave the file's"));
}

TEST(SafetensorsHeader, ShapesThatOverflowAreErrors) {
  EXPECT_THAT(Parse(One("F32", "[4294967296,4294967296]", "[0,0]"), 0),
              IsInvalid("more than 2^64 - 1 elements"));
  EXPECT_THAT(Parse(One("F32", "[4611686018427387904]", "[0,0]"), 0),
              IsInvalid("not a possible number of bytes"));
  EXPECT_THAT(Parse(One("F32", "[9223372036854775808]", "[0,0]"), 0),
              IsInvalid("shape holds 9223372036854775808"));
  EXPECT_THAT(Parse(One("F32", "[18446744073709551616]", "[0,0]"), 0),
              IsInvalid("shape holds 1.844"));
}

TEST(SafetensorsHeader, WrongJsonTypesAreErrors) {
  for (const char* shape : {"[-1]", "[1.0]", "[\"1\"]", "[null]", "[[1]]", "[true]"}) {
    EXPECT_THAT(Parse(One("F32", shape, "[0,4]"), 4), IsInvalid("whole numbers from 0")) << shape;
  }
  for (const char* shape : {"1", "null", "{}", "\"[1]\""}) {
    EXPECT_THAT(Parse(One("F32", shape, "[0,4]"), 4), IsInvalid("an array is expected")) << shape;
  }
  for (const char* offsets :
       {"[0]", "[0,4,8]", "[-4,4]", "[0.0,4.0]", "null", "{\"0\":4}", "[\"0\",4]"}) {
    EXPECT_THAT(Parse(One("F32", "[1]", offsets), 4), IsInvalid("[BEGIN, END] is expected"))
        << offsets;
  }
  EXPECT_THAT(Parse(R"({"t":[]})", 0), IsInvalid("an object is expected"));
  EXPECT_THAT(Parse(R"({"t":{"dtype":7,"shape":[],"data_offsets":[0,4]}})", 4),
              IsInvalid("a string is expected"));
  EXPECT_THAT(Parse(R"({"t":{"dtype":"F32","shape":[]}})", 4), IsInvalid("has no data_offsets"));
  EXPECT_THAT(Parse(R"({"t":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":1}})", 4),
              IsInvalid("unknown key \"x\""));
  EXPECT_THAT(Parse(R"({"__metadata__":[]})", 0), IsInvalid("an object is expected"));
  EXPECT_THAT(Parse(R"({"__metadata__":{"a":1}})", 0), IsInvalid("a string is expected"));
}

TEST(SafetensorsHeader, TextThatIsNoJsonObjectIsAnError) {
  EXPECT_THAT(Parse("", 0), IsInvalid("does not begin with '{'"));
  EXPECT_THAT(Parse(" {}", 0), IsInvalid("does not begin with '{'"));
  EXPECT_THAT(Parse("[]", 0), IsInvalid("does not begin with '{'"));
  EXPECT_THAT(Parse("{", 0), IsInvalid("not valid JSON at byte"));
  EXPECT_THAT(Parse("{} {}", 0), IsInvalid("not valid JSON"));
  EXPECT_THAT(Parse("{\"\xff\":{}}", 0), IsInvalid("is not UTF-8: byte 0xff at offset 2"));
  EXPECT_THAT(Parse(std::string("{}\0", 3), 0), IsInvalid("not valid JSON"));
}

TEST(SafetensorsHeader, DeepNestingIsRefusedBeforeItExhaustsAnything) {
  const std::string deep = "{\"t\":" + std::string(1'000'000, '[');
  EXPECT_THAT(Parse(deep, 0), IsInvalid("nested more than 64 deep"));
}

TEST(SafetensorsHeader, MillionsOfValuesAreRefused) {
  std::string many = "{\"t\":[0";
  for (int i = 0; i < 4'000'000; ++i) many += ",0";
  EXPECT_THAT(Parse(many + "]}", 0), IsInvalid("more than 4000000 JSON values"));
}

TEST(SafetensorsHeader, ErrorsNameFileAndTensorAndStayShort) {
  const std::string name(100'000, 'n');
  const auto entries = Parse("{\"" + name + "\":7}", 0);
  ASSERT_THAT(entries, IsInvalid("file: tensor \"nnn"));
  EXPECT_LT(entries.status().message().size(), 300u);
}

}  // namespace
}  // namespace spillway::hf
