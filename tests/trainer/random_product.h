// SPDX-License-Identifier: Apache-2.0
//
// Random products of the forms that training has, in fp32 and of small whole numbers, so that every
// order of sums gives the same bits.

#ifndef SPILLWAY_TESTS_TRAINER_RANDOM_PRODUCT_H_
#define SPILLWAY_TESTS_TRAINER_RANDOM_PRODUCT_H_

#include <cstdint>
#include <random>
#include <vector>

#include "tools/trainer/compute/gpu/product_call.h"

namespace spillway::trainer::gpu {

struct RandomProduct {
  RowMajorProduct product;
  std::vector<float> a, b, d;  // memory that holds the operands, from their offsets on
  std::vector<float> result;   // what `d` is afterwards, computed row by row
};

// The first element of an operand in its memory.
inline float* First(std::vector<float>& memory, const RowMajor& matrix) {
  return memory.data() + matrix.offset_bytes / sizeof(float);
}

inline RandomProduct MakeRandomProduct(std::mt19937_64& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  // Columns [first, first + columns) of a matrix of rows of `width` elements.
  const auto part = [](int64_t rows, int64_t columns, int64_t width, int64_t first) {
    RowMajor matrix;
    matrix.view = {.rows = rows, .columns = columns, .stride = width};
    matrix.offset_bytes = static_cast<uint64_t>(first) * sizeof(float);
    return matrix;
  };
  const auto whole = [&](int64_t rows, int64_t columns) { return part(rows, columns, columns, 0); };
  RandomProduct made;
  RowMajorProduct& product = made.product;
  const int64_t tokens = draw(1, 9), inputs = draw(1, 9), tile = draw(1, 7);
  const int64_t outputs = tile + draw(0, 5), first = draw(0, outputs - tile);
  const int64_t heads = draw(1, 4), head_dim = draw(1, 6), keys = draw(1, 9);
  switch (draw(0, 4)) {
    case 0:  // y[:, tile] = x·Wᵀ
      product = {.a = whole(tokens, inputs),
                 .b = whole(tile, inputs),
                 .d = part(tokens, tile, outputs, first)};
      product.transposes_b = true;
      break;
    case 1:  // dx = dy[:, tile]·W
      product = {.a = part(tokens, tile, outputs, first),
                 .b = whole(tile, inputs),
                 .d = whole(tokens, inputs)};
      break;
    case 2:  // dW = dy[:, tile]ᵀ·x
      product = {.a = part(tokens, tile, outputs, first),
                 .b = whole(tokens, inputs),
                 .d = whole(tile, inputs)};
      product.transposes_a = true;
      break;
    case 3:  // the scores of all heads, whose queries and keys lie beside each other in a row
      product = {.a = part(tokens, head_dim, heads * head_dim, 0),
                 .b = part(keys, head_dim, heads * head_dim, 0),
                 .d = whole(tokens, keys)};
      product.a.batch_elements = product.b.batch_elements = head_dim;
      product.d.batch_elements = tokens * keys;
      product.transposes_b = true;
      product.batch = heads;
      break;
    default:  // weighted values of heads that share them
      product = {.a = whole(tokens, keys),
                 .b = part(keys, head_dim, head_dim + 3, 2),
                 .d = whole(tokens, head_dim)};
      product.a.batch_elements = tokens * keys;
      product.b.batch_elements = 0;
      product.d.batch_elements = tokens * head_dim;
      if (draw(0, 1) == 1) {  // beside each other in the rows of tokens
        product.d = part(tokens, head_dim, heads * head_dim, 0);
        product.d.batch_elements = head_dim;
      }
      product.batch = heads;
  }
  if (draw(0, 1) == 1) product.into = Into::kAdd;
  const auto fill = [&](const RowMajor& matrix, std::vector<float>* memory) {
    const int64_t elements = static_cast<int64_t>(matrix.offset_bytes / sizeof(float)) +
                             (product.batch - 1) * matrix.batch_elements +
                             matrix.view.rows * matrix.view.stride + 3;
    for (int64_t i = 0; i < elements; ++i) memory->push_back(static_cast<float>(draw(-4, 4)));
  };
  fill(product.a, &made.a);
  fill(product.b, &made.b);
  fill(product.d, &made.d);

  made.result = made.d;
  const View &a = product.a.view, &b = product.b.view, &d = product.d.view;
  for (int64_t batch = 0; batch < product.batch; ++batch) {
    const float* const from_a = First(made.a, product.a) + batch * product.a.batch_elements;
    const float* const from_b = First(made.b, product.b) + batch * product.b.batch_elements;
    float* const to = First(made.result, product.d) + batch * product.d.batch_elements;
    const int64_t inner = product.transposes_a ? a.rows : a.columns;
    for (int64_t row = 0; row < d.rows; ++row) {
      for (int64_t column = 0; column < d.columns; ++column) {
        float sum = 0;
        for (int64_t i = 0; i < inner; ++i) {
          sum += (product.transposes_a ? from_a[i * a.stride + row] : from_a[row * a.stride + i]) *
                 (product.transposes_b ? from_b[column * b.stride + i]
                                       : from_b[i * b.stride + column]);
        }
        float& element = to[row * d.stride + column];
        element = sum + (product.into == Into::kAdd ? element : 0);
      }
    }
  }
  return made;
}

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TESTS_TRAINER_RANDOM_PRODUCT_H_
