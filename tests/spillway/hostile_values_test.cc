// SPDX-License-Identifier: Apache-2.0
//
// Values and files that contradict the model. Each is refused with a message that names the fault.

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;

class HostileValues : public ::testing::Test {
 protected:
  void ExpectRefused(const Arguments& arguments, int code, const std::string& words) const {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, code) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(words));
  }
  const Training training_;
};

TEST_F(HostileValues, APageOfNoBytes) {
  for (const char* size : {"0", "1", "4095"}) {
    ExpectRefused(training_.TrainInStore(1) + Arguments{"--page-bytes", size}, 2, "--page-bytes");
  }
}

TEST_F(HostileValues, AWindowLongerThanTheModelWasMadeFor) {
  ExpectRefused(training_.Train(1) + Arguments{"--seq", "129"}, 2, "given more than once");
  Arguments arguments = training_.Train(1);
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == "--seq") arguments[i + 1] = "129";
  }
  ExpectRefused(arguments, 2, "max_position_embeddings, 128");
  const Ended saved = RunCommand(training_.Train(1) + Arguments{"--save", training_ / "tuned"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const Arguments eval = {"eval", "--model", training_ / "tuned", "--data", training_.data()};
  ExpectRefused(eval + Arguments{"--seq", "129"}, 2, "max_position_embeddings, 128");
  const Ended whole = RunCommand(eval);
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("of 128 tokens"));
}

TEST_F(HostileValues, APromptWithNothingBetweenTwoCommas) {
  const Ended saved = RunCommand(training_.Train(1) + Arguments{"--save", training_ / "tuned"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  for (const char* tokens : {"1,,2", ",1", "1,", ",", "1, ,2"}) {
    ExpectRefused({"generate", "--model", training_ / "tuned", "--tokens", tokens}, 2,
                  "nothing between two commas");
  }
}

TEST_F(HostileValues, TokensOutsideTheVocabularyThatTheyAreSaidToBeFrom) {
  WriteFile(training_.data() + "/meta.json", R"({"vocab_size":5})");
  ExpectRefused(training_.Train(1), 1, "outside the vocabulary (vocab_size 5");
}

}  // namespace
}  // namespace spillway::test
