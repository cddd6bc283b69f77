// SPDX-License-Identifier: Apache-2.0
//
// The decoder's loss in double precision, written straight from the papers with loops over
// elements: slow, short and independent of the trainer. Tests take finite differences of it.

#ifndef SPILLWAY_TESTS_TRAINER_REFERENCE_MODEL_H_
#define SPILLWAY_TESTS_TRAINER_REFERENCE_MODEL_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "tools/hf/config.h"

namespace spillway::trainer {

using Vector = std::vector<double>;

class ReferenceModel {
 public:
  ReferenceModel(const hf::ModelConfig& config, std::map<std::string, Vector> weights)
      : config_(config), weights_(std::move(weights)) {}

  Vector& weight(const std::string& name) { return weights_.at(name); }

  // Returns the logits of one window, [length, vocab].
  Vector Logits(std::span<const int32_t> tokens) const {
    const size_t length = tokens.size();
    const size_t hidden = static_cast<size_t>(config_.hidden_size);
    const Vector& embedding = weights_.at("model.embed_tokens.weight");
    Vector x(length * hidden);
    for (size_t t = 0; t < length; ++t) {
      for (size_t i = 0; i < hidden; ++i) {
        x[t * hidden + i] = embedding[static_cast<size_t>(tokens[t]) * hidden + i];
      }
    }
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      Add(Attention(prefix, Norm(x, prefix + "input_layernorm.weight"), length), &x);
      Add(FeedForward(prefix, Norm(x, prefix + "post_attention_layernorm.weight")), &x);
    }
    const std::string head =
        config_.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    return Linear(Norm(x, "model.norm.weight"), head, hidden);
  }

  // Returns the mean loss over the tokens of all windows.
  double Loss(std::span<const int32_t> inputs, std::span<const int32_t> targets,
              size_t length) const {
    const size_t vocab = static_cast<size_t>(config_.vocab_size);
    double loss = 0;
    for (size_t first = 0; first < inputs.size(); first += length) {
      const Vector logits = Logits(inputs.subspan(first, length));
      for (size_t t = 0; t < length; ++t) {
        double sum = 0;
        for (size_t v = 0; v < vocab; ++v) sum += std::exp(logits[t * vocab + v]);
        loss += std::log(sum) - logits[t * vocab + static_cast<size_t>(targets[first + t])];
      }
    }
    return loss / static_cast<double>(inputs.size());
  }

 private:
  static void Add(const Vector& from, Vector* to) {
    for (size_t i = 0; i < from.size(); ++i) (*to)[i] += from[i];
  }

  Vector Linear(const Vector& x, const std::string& name, size_t inputs) const {
    const Vector& w = weights_.at(name);
    const size_t rows = x.size() / inputs, outputs = w.size() / inputs;
    Vector y(rows * outputs);
    for (size_t r = 0; r < rows; ++r) {
      for (size_t o = 0; o < outputs; ++o) {
        for (size_t i = 0; i < inputs; ++i)
          y[r * outputs + o] += x[r * inputs + i] * w[o * inputs + i];
      }
    }
    return y;
  }

  Vector Norm(const Vector& x, const std::string& name) const {
    const Vector& w = weights_.at(name);
    const size_t width = w.size();
    Vector y(x.size());
    for (size_t r = 0; r < x.size(); r += width) {
      double mean = 0;
      for (size_t i = 0; i < width; ++i) mean += x[r + i] * x[r + i] / static_cast<double>(width);
      for (size_t i = 0; i < width; ++i)
        y[r + i] = w[i] * x[r + i] / std::sqrt(mean + config_.rms_norm_eps);
    }
    return y;
  }

  void Rope(size_t length, size_t heads, Vector* x) const {
    const size_t dim = static_cast<size_t>(config_.head_dim), half = dim / 2;
    for (size_t t = 0; t < length; ++t) {
      for (size_t h = 0; h < heads; ++h) {
        double* row = x->data() + (t * heads + h) * dim;
        for (size_t j = 0; j < half; ++j) {
          const double angle = static_cast<double>(t) *
                               std::pow(config_.rope_theta,
                                        -2.0 * static_cast<double>(j) / static_cast<double>(dim));
          const double low = row[j], high = row[j + half];
          row[j] = low * std::cos(angle) - high * std::sin(angle);
          row[j + half] = high * std::cos(angle) + low * std::sin(angle);
        }
      }
    }
  }

  Vector Attention(const std::string& prefix, const Vector& x, size_t length) const {
    const size_t hidden = static_cast<size_t>(config_.hidden_size),
                 dim = static_cast<size_t>(config_.head_dim);
    const size_t heads = static_cast<size_t>(config_.num_heads),
                 kv = static_cast<size_t>(config_.num_kv_heads);
    Vector q = Linear(x, prefix + "self_attn.q_proj.weight", hidden);
    Vector k = Linear(x, prefix + "self_attn.k_proj.weight", hidden);
    const Vector v = Linear(x, prefix + "self_attn.v_proj.weight", hidden);
    Rope(length, heads, &q);
    Rope(length, kv, &k);
    Vector out(length * heads * dim);
    for (size_t h = 0; h < heads; ++h) {
      const size_t shared = h / (heads / kv);
      for (size_t t = 0; t < length; ++t) {
        Vector p(t + 1);
        double sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          double dot = 0;
          for (size_t i = 0; i < dim; ++i)
            dot += q[(t * heads + h) * dim + i] * k[(s * kv + shared) * dim + i];
          sum += p[s] = std::exp(dot / std::sqrt(static_cast<double>(dim)));
        }
        for (size_t s = 0; s <= t; ++s) {
          for (size_t i = 0; i < dim; ++i) {
            out[(t * heads + h) * dim + i] += p[s] / sum * v[(s * kv + shared) * dim + i];
          }
        }
      }
    }
    return Linear(out, prefix + "self_attn.o_proj.weight", heads * dim);
  }

  Vector FeedForward(const std::string& prefix, const Vector& x) const {
    const size_t hidden = static_cast<size_t>(config_.hidden_size);
    const Vector gate = Linear(x, prefix + "mlp.gate_proj.weight", hidden);
    Vector up = Linear(x, prefix + "mlp.up_proj.weight", hidden);
    for (size_t i = 0; i < up.size(); ++i) up[i] *= gate[i] / (1 + std::exp(-gate[i]));
    return Linear(up, prefix + "mlp.down_proj.weight",
                  static_cast<size_t>(config_.intermediate_size));
  }

  hf::ModelConfig config_;
  std::map<std::string, Vector> weights_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TESTS_TRAINER_REFERENCE_MODEL_H_
