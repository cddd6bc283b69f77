// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_OPTIM_CODE_LEVELS_H_
#define SPILLWAY_OPTIM_CODE_LEVELS_H_

namespace spillway::optim {

// How magnitudes over the scale become the levels of a code map (block_codec.h). Level 0 is zero,
// and each level's value is larger than the previous one's.
struct CodeLevels {
  static constexpr int kDecades = 7;
  struct Decade {
    float from = 0;    // half way from the previous decade's last value to this one's first
    float slope = 0;   // levels for a magnitude of 1
    float offset = 0;  // level at magnitude 0 if the decade's line went on to there
    float last = 0;    // the decade's largest level
  };
  Decade decades[kDecades];
  float one_from = 0;  // a magnitude from here on has the level of 1
  float one_level = 0;
  float least_level = 0;  // least level of a magnitude that is not zero
  float most_zero = 0;    // only a magnitude up to this, before the division, has level 0
  int zero_code = 0;      // a code is this plus or minus the level
};

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_CODE_LEVELS_H_
