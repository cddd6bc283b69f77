/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints what callers of spillway.h are compiled against: the size of each struct, the offset and
 * size of each member, and the value of each enumerator. tests/capi/abi.txt holds the committed
 * output. */

#include <spillway/spillway.h>
#include <stddef.h>
#include <stdio.h>

#define STRUCT(type) printf("%s: %zu bytes\n", #type, sizeof(type))
#define MEMBER(type, member)                                                  \
  printf("  %s at %zu, %zu bytes\n", #member, offsetof(type, member), \
         sizeof(((type*)0)->member))
#define VALUE(name) printf("%s = %d\n", #name, (int)(name))

static void Structs(void) {
  STRUCT(spw_engine_options);
  MEMBER(spw_engine_options, size);
  MEMBER(spw_engine_options, store);
  MEMBER(spw_engine_options, num_store);
  MEMBER(spw_engine_options, mode);
  MEMBER(spw_engine_options, io);
  MEMBER(spw_engine_options, device_kind);
  MEMBER(spw_engine_options, device_index);
  MEMBER(spw_engine_options, store_bytes);
  MEMBER(spw_engine_options, device_bytes);
  MEMBER(spw_engine_options, pinned_bytes);
  MEMBER(spw_engine_options, page_bytes);
  MEMBER(spw_engine_options, calibration);
  MEMBER(spw_engine_options, plan_steps);
  MEMBER(spw_engine_options, queue_depth);
  MEMBER(spw_engine_options, timeline_events);
  MEMBER(spw_engine_options, announce);
  MEMBER(spw_engine_options, announce_user);
  MEMBER(spw_engine_options, placement);
  STRUCT(spw_tensor_spec);
  MEMBER(spw_tensor_spec, size);
  MEMBER(spw_tensor_spec, name);
  MEMBER(spw_tensor_spec, dtype);
  MEMBER(spw_tensor_spec, role);
  MEMBER(spw_tensor_spec, shape);
  MEMBER(spw_tensor_spec, rank);
  MEMBER(spw_tensor_spec, tile_rows);
  MEMBER(spw_tensor_spec, transient);
  STRUCT(spw_confirmed_reader);
  MEMBER(spw_confirmed_reader, read);
  MEMBER(spw_confirmed_reader, user);
  MEMBER(spw_confirmed_reader, is_done);
  STRUCT(spw_use);
  MEMBER(spw_use, id);
  MEMBER(spw_use, tier);
  MEMBER(spw_use, access);
  MEMBER(spw_use, tile);
  STRUCT(spw_rule);
  MEMBER(spw_rule, size);
  MEMBER(spw_rule, kind);
  MEMBER(spw_rule, beta1);
  MEMBER(spw_rule, beta2);
  MEMBER(spw_rule, epsilon);
  MEMBER(spw_rule, alpha);
  MEMBER(spw_rule, momentum);
  MEMBER(spw_rule, trust_coefficient);
  MEMBER(spw_rule, beta2_decay);
  MEMBER(spw_rule, epsilon2);
  MEMBER(spw_rule, clipping_threshold);
  MEMBER(spw_rule, dampening);
  MEMBER(spw_rule, nesterov);
  MEMBER(spw_rule, centered);
  MEMBER(spw_rule, amsgrad);
  MEMBER(spw_rule, maximize);
  STRUCT(spw_values);
  MEMBER(spw_values, memory);
  MEMBER(spw_values, dtype);
  MEMBER(spw_values, id);
  STRUCT(spw_parameter);
  MEMBER(spw_parameter, size);
  MEMBER(spw_parameter, name);
  MEMBER(spw_parameter, weight);
  MEMBER(spw_parameter, has_gradient);
  MEMBER(spw_parameter, gradient);
  MEMBER(spw_parameter, shape);
  MEMBER(spw_parameter, rank);
  MEMBER(spw_parameter, tile_rows);
  MEMBER(spw_parameter, state);
  MEMBER(spw_parameter, num_state);
  MEMBER(spw_parameter, is_fresh);
  MEMBER(spw_parameter, rule);
  STRUCT(spw_update);
  MEMBER(spw_update, size);
  MEMBER(spw_update, parameter);
  MEMBER(spw_update, step);
  MEMBER(spw_update, learning_rate);
  MEMBER(spw_update, weight_decay);
  MEMBER(spw_update, gradient_scale);
  MEMBER(spw_update, rule);
  MEMBER(spw_update, weight_memory);
  MEMBER(spw_update, gradient_memory);
  MEMBER(spw_update, take_changed_weight);
  STRUCT(spw_state);
  MEMBER(spw_state, size);
  MEMBER(spw_state, parameter);
  MEMBER(spw_state, weight_memory);
  MEMBER(spw_state, masters);
  MEMBER(spw_state, moments);
  MEMBER(spw_state, num_moments);
  MEMBER(spw_state, num_elements);
}

static void Values(void) {
  VALUE(SPW_OK);
  VALUE(SPW_CANCELLED);
  VALUE(SPW_UNKNOWN);
  VALUE(SPW_INVALID_ARGUMENT);
  VALUE(SPW_NOT_FOUND);
  VALUE(SPW_ALREADY_EXISTS);
  VALUE(SPW_RESOURCE_EXHAUSTED);
  VALUE(SPW_FAILED_PRECONDITION);
  VALUE(SPW_ABORTED);
  VALUE(SPW_OUT_OF_RANGE);
  VALUE(SPW_UNIMPLEMENTED);
  VALUE(SPW_INTERNAL);
  VALUE(SPW_UNAVAILABLE);
  VALUE(SPW_DATA_LOSS);
  VALUE(SPW_F32);
  VALUE(SPW_F16);
  VALUE(SPW_BF16);
  VALUE(SPW_U8);
  VALUE(SPW_DEVICE);
  VALUE(SPW_PINNED);
  VALUE(SPW_NVME);
  VALUE(SPW_READ);
  VALUE(SPW_WRITE);
  VALUE(SPW_READ_WRITE);
  VALUE(SPW_DISCARD);
  VALUE(SPW_CREATE);
  VALUE(SPW_OPEN_OR_CREATE);
  VALUE(SPW_SCRATCH);
  VALUE(SPW_AUTO);
  VALUE(SPW_URING);
  VALUE(SPW_POSIX);
  VALUE(SPW_HOST);
  VALUE(SPW_CUDA);
  VALUE(SPW_KEEP);
  VALUE(SPW_IF_NONE);
  VALUE(SPW_NOW);
  VALUE(SPW_PARAMETER);
  VALUE(SPW_GRADIENT);
  VALUE(SPW_MASTER_WEIGHT);
  VALUE(SPW_MOMENT);
  VALUE(SPW_ACTIVATION);
  VALUE(SPW_NUM_ROLES);
  VALUE(SPW_NOWHERE);
  VALUE(SPW_ADAMW);
  VALUE(SPW_ADAM);
  VALUE(SPW_SGD);
  VALUE(SPW_RMSPROP);
  VALUE(SPW_LION);
  VALUE(SPW_LAMB);
  VALUE(SPW_LARS);
  VALUE(SPW_ADAFACTOR);
  VALUE(SPW_STATE_F32);
  VALUE(SPW_STATE_BF16);
  VALUE(SPW_STATE_8BIT);
  VALUE(SPW_STATE_COMPACT);
}

int main(void) {
  Structs();
  Values();
  return 0;
}
