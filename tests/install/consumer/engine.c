/* engine SOCKET DIRECTORY: an engine whose memory follows the receiver's directory, in plain C. It
 * publishes what it follows itself. Exits with 0 when all went as it must. */
#include <deltawire/deltawire_engine.h>
#include <deltawire/deltawire_export.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                                 \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "line %d: %s (%s; %s)\n", __LINE__, #condition, dw_engine_last_error(), \
              dw_last_error());                                                            \
      exit(1);                                                                             \
    }                                                                                      \
  } while (0)
#define CHECK(call) REQUIRE((call) == 0)

enum { ROWS = 3, COLUMNS = 4, WAIT_MS = 60000 };
static const uint64_t kShape[] = {ROWS, COLUMNS};

/* The engine's memory: the matrix transposed, and the scalar, with padding between. */
struct memory {
  float transposed[COLUMNS][ROWS];
  float padding[2];
  int64_t scalar;
};

static void load(struct memory* memory, float first, int64_t scalar) {
  int r, c;
  for (r = 0; r < ROWS; ++r) {
    for (c = 0; c < COLUMNS; ++c) memory->transposed[c][r] = first + (float)(r * COLUMNS + c);
  }
  memory->padding[0] = memory->padding[1] = 7;
  memory->scalar = scalar;
}

static int holds(const struct memory* memory, float first, int64_t scalar) {
  struct memory wanted;
  load(&wanted, first, scalar);
  return memcmp(memory, &wanted, sizeof wanted) == 0;
}

/* Version `version` through the trainer's library; the matrix counts up from `first`. */
static void publish(const char* endpoint, uint64_t version, float first, int64_t scalar) {
  float matrix[ROWS * COLUMNS];
  dw_tensor_meta tensors[2];
  dw_client_options options;
  dw_register_options model;
  dw_client* client = NULL;
  dw_offload* offload = NULL;
  const uint32_t both[] = {0, 1};
  void* data = NULL;
  int i;
  for (i = 0; i < ROWS * COLUMNS; ++i) matrix[i] = first + (float)i;
  memset(tensors, 0, sizeof tensors);
  memset(&options, 0, sizeof options);
  memset(&model, 0, sizeof model);
  tensors[0].struct_size = tensors[1].struct_size = sizeof tensors[0];
  tensors[0].name = "matrix";
  tensors[0].dtype = "F32";
  tensors[0].shape = kShape;
  tensors[0].ndim = 2;
  tensors[1].name = "scalar";
  tensors[1].dtype = "I64";
  options.struct_size = sizeof options;
  options.endpoint = endpoint;
  options.model = "m";
  model.struct_size = sizeof model;
  model.tensors = tensors;
  model.tensor_count = 2;
  model.keep_side_files = 1;
  CHECK(dw_client_create(&options, &client));
  CHECK(dw_client_register(client, &model, NULL));
  CHECK(dw_offload_begin(client, version, &offload));
  CHECK(dw_offload_tensor(offload, 0, &data, NULL));
  memcpy(data, matrix, sizeof matrix);
  CHECK(dw_offload_tensor(offload, 1, &data, NULL));
  memcpy(data, &scalar, sizeof scalar);
  CHECK(dw_offload_mark_written(offload, both, 2, DW_SHARE_WHOLE));
  CHECK(dw_offload_ready(offload));
  dw_offload_destroy(offload);
  CHECK(dw_wait_published(client, version, 0, NULL));
  dw_client_destroy(client);
}

static dw_engine* bind_memory(const char* directory, struct memory* memory) {
  const uint64_t matrix_counts[] = {ROWS, COLUMNS}, one[] = {1};
  const int64_t matrix_strides[] = {COLUMNS, 1}, transposed[] = {1, ROWS}, dense[] = {1};
  dw_engine_options options;
  dw_engine_storage storage;
  dw_engine_box boxes[2];
  dw_engine* engine = NULL;
  memset(&options, 0, sizeof options);
  memset(&storage, 0, sizeof storage);
  memset(boxes, 0, sizeof boxes);
  options.struct_size = sizeof options;
  options.directory = directory;
  options.threads = 1;
  CHECK(dw_engine_open(&options, &engine));
  storage.struct_size = sizeof storage;
  storage.name = "weights";
  storage.memory = memory;
  storage.bytes = sizeof *memory;
  boxes[0].struct_size = boxes[1].struct_size = sizeof boxes[0];
  boxes[0].tensor = 0;
  boxes[0].ndim = 2;
  boxes[0].counts = matrix_counts;
  boxes[0].source_strides = matrix_strides;
  boxes[0].place_strides = transposed;
  boxes[1].tensor = 1;
  boxes[1].ndim = 1;
  boxes[1].counts = one;
  boxes[1].source_strides = boxes[1].place_strides = dense;
  boxes[1].place_offset = (int64_t)(offsetof(struct memory, scalar) / sizeof(int64_t));
  CHECK(dw_engine_bind(engine, &storage, 1, boxes, 2));
  boxes[1].place_offset = 1;
  REQUIRE(dw_engine_bind(engine, &storage, 1, boxes, 2) == DW_ENGINE_INVALID_ARGUMENT);
  REQUIRE(strstr(dw_engine_last_error(), "scalar") != NULL);
  return engine;
}

int main(int argc, char** argv) {
  struct memory memory;
  dw_engine* engine;
  dw_engine_model model;
  dw_engine_tensor tensor;
  dw_engine_identity held, committed;
  dw_engine_comparison found;
  dw_engine_update update;
  const uint32_t* changed = NULL;
  size_t changes = 0;
  uint64_t bytes = 0;
  int64_t scalar = 0;
  char text[128];
  if (argc != 3) return 2;
  REQUIRE(dw_engine_abi_version() == DW_ENGINE_ABI_VERSION);
  load(&memory, 1.5f, -5);
  engine = bind_memory(argv[2], &memory);
  model.struct_size = sizeof model;
  CHECK(dw_engine_get_model(engine, &model));
  REQUIRE(model.tensors == 2 && model.bytes == 56 && strlen(model.fingerprint) == 32);
  tensor.struct_size = sizeof tensor;
  CHECK(dw_engine_get_tensor(engine, 0, &tensor));
  REQUIRE(strcmp(tensor.name, "matrix") == 0 && strcmp(tensor.dtype, "F32") == 0);
  REQUIRE(tensor.ndim == 2 && tensor.shape[1] == COLUMNS && tensor.bytes == 48);
  CHECK(dw_engine_unmapped(engine, 0, &bytes));
  REQUIRE(bytes == sizeof memory.padding);

  /* Other bytes are named, and not adopted. */
  found.struct_size = sizeof found;
  memory.transposed[2][1] = 0;
  CHECK(dw_engine_adopt(engine, &found));
  REQUIRE(found.different_count == 1 && found.different[0] == 0);
  CHECK(dw_engine_held(engine, &held));
  REQUIRE(held.epoch == 0);
  REQUIRE(dw_engine_prepare(engine, NULL) == DW_ENGINE_FAILED_PRECONDITION);
  load(&memory, 1.5f, -5);
  CHECK(dw_engine_adopt(engine, &found));
  REQUIRE(found.different_count == 0 && found.bytes == 56);
  CHECK(dw_engine_held(engine, &held));
  REQUIRE(held.version == 3 && dw_engine_describe(&held, text, sizeof text) == strlen(text));
  REQUIRE(dw_engine_wait(engine, &held, 1, NULL, NULL, &committed) ==
          DW_ENGINE_DEADLINE_EXCEEDED);

  publish(argv[1], 4, 2.5f, 12);
  CHECK(dw_engine_wait(engine, &held, WAIT_MS, NULL, NULL, &committed));
  update.struct_size = sizeof update;
  CHECK(dw_engine_prepare(engine, &update));
  REQUIRE(update.from.version == 3 && update.to.version == 4 && holds(&memory, 1.5f, -5));
  CHECK(dw_engine_changed(engine, &changed, &changes));
  REQUIRE(changes == 2 && changed[0] == 0 && changed[1] == 1);
  CHECK(dw_engine_read(engine, DW_ENGINE_STATE_PREPARED, 1, &scalar, sizeof scalar));
  REQUIRE(scalar == 12);
  REQUIRE(dw_engine_read(engine, DW_ENGINE_STATE_HELD, 1, &scalar, sizeof scalar) ==
          DW_ENGINE_UNAVAILABLE);
  CHECK(dw_engine_discard(engine));
  REQUIRE(dw_engine_apply(engine) == DW_ENGINE_FAILED_PRECONDITION);
  CHECK(dw_engine_prepare(engine, &update));
  CHECK(dw_engine_apply(engine));
  REQUIRE(holds(&memory, 2.5f, 12));
  CHECK(dw_engine_check(engine, &found));
  REQUIRE(found.different_count == 0 && found.identity.version == 4);
  CHECK(dw_engine_rollback(engine));
  REQUIRE(holds(&memory, 1.5f, -5));
  REQUIRE(dw_engine_rollback(engine) == DW_ENGINE_FAILED_PRECONDITION);
  dw_engine_close(engine);
  return 0;
}
