/* publish SOCKET: two versions of a small model, in plain C. Exits with 0 when all went as it must. */
#include <deltawire/deltawire_export.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                          \
  do {                                                                       \
    int code = (call);                                                       \
    if (code != DW_OK) {                                                     \
      fprintf(stderr, "%s: code %d: %s\n", #call, code, dw_last_error());    \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

#define REQUIRE(condition)                                                   \
  do {                                                                       \
    if (!(condition)) {                                                      \
      fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, dw_last_error()); \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

enum { ROWS = 3, COLUMNS = 4 };
static const uint64_t kShape[] = {ROWS, COLUMNS};

static void register_model(dw_client* client) {
  dw_tensor_meta tensors[2];
  dw_side_file side = {sizeof side, "config.json", "{}", 2};
  dw_register_options options;
  dw_registered registered;
  memset(tensors, 0, sizeof tensors);
  memset(&options, 0, sizeof options);
  tensors[0].struct_size = tensors[1].struct_size = sizeof tensors[0];
  tensors[0].name = "matrix";
  tensors[0].dtype = "F32";
  tensors[0].shape = kShape;
  tensors[0].ndim = 2;
  tensors[1].name = "scalar";
  tensors[1].dtype = "I64";
  options.struct_size = sizeof options;
  options.tensors = tensors;
  options.tensor_count = 2;
  options.side_files = &side;
  options.side_file_count = 1;
  registered.struct_size = sizeof registered;
  CHECK(dw_client_register(client, &options, &registered));
  REQUIRE(registered.version == 0 && registered.total_bytes == 4 * ROWS * COLUMNS + 8);
  REQUIRE(strlen(registered.fingerprint) == 32);

  tensors[1].dtype = "float";
  REQUIRE(dw_client_register(client, &options, NULL) == DW_INVALID_ARGUMENT);
  REQUIRE(strstr(dw_last_error(), "scalar") != NULL);
  options.struct_size = 8;
  REQUIRE(dw_client_register(client, &options, NULL) == DW_INVALID_ARGUMENT);
}

/* The matrix comes transposed: COLUMNS x ROWS in memory. */
static void write_matrix(dw_offload* offload, uint32_t tensor, float first) {
  float transposed[COLUMNS][ROWS];
  int64_t strides[] = {sizeof(float), ROWS * sizeof(float)};
  dw_block block;
  int r, c;
  for (r = 0; r < ROWS; ++r) {
    for (c = 0; c < COLUMNS; ++c) transposed[c][r] = first + (float)(r * COLUMNS + c);
  }
  memset(&block, 0, sizeof block);
  block.struct_size = sizeof block;
  block.data = transposed;
  block.element_bytes = sizeof(float);
  block.ndim = 2;
  block.shape = kShape;
  block.strides = strides;
  CHECK(dw_offload_write(offload, tensor, &block, DW_SHARE_WHOLE));
  block.element_bytes = 2;
  REQUIRE(dw_offload_write(offload, tensor, &block, DW_SHARE_WHOLE) == DW_INVALID_ARGUMENT);
  REQUIRE(strstr(dw_last_error(), "matrix") != NULL);
}

static int gone_at_the_second(void* asked) { return ++*(int*)asked == 2; }

int main(int argc, char** argv) {
  dw_client_options options;
  dw_client* client = NULL;
  dw_offload* offload = NULL;
  dw_published published;
  uint32_t matrix = 9, scalar = 9;
  uint64_t bytes = 0, mapped_bytes = 0;
  int asked = 0;
  void *data = NULL, *mapped = NULL;
  dw_mapping* mapping = NULL;
  int64_t value = -5;
  if (argc != 2) return 2;
  REQUIRE(dw_abi_version() == DW_ABI_VERSION);
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.endpoint = argv[1];
  options.model = "m";
  CHECK(dw_client_create(&options, &client));
  REQUIRE(dw_offload_begin(client, 1, &offload) == DW_FAILED_PRECONDITION);
  register_model(client);
  CHECK(dw_client_find(client, "matrix", &matrix));
  CHECK(dw_client_find(client, "scalar", &scalar));
  REQUIRE(dw_client_find(client, "vector", &scalar) == DW_NOT_FOUND && scalar == 1);

  CHECK(dw_offload_begin(client, 1, &offload));
  write_matrix(offload, matrix, 0.5f);
  CHECK(dw_offload_tensor(offload, scalar, &data, &bytes));
  REQUIRE(bytes == sizeof value);
  CHECK(dw_offload_mapping(offload, &mapping, &mapped, &mapped_bytes));
  REQUIRE((char*)mapped <= (char*)data && (char*)data + bytes <= (char*)mapped + mapped_bytes);
  REQUIRE(dw_mapping_in_use(mapping) == 1);
  memcpy(data, &value, sizeof value);
  CHECK(dw_offload_mark_written(offload, &scalar, 1, DW_SHARE_WHOLE));
  CHECK(dw_offload_ready(offload));
  dw_offload_destroy(offload);
  published.struct_size = sizeof published;
  CHECK(dw_wait_published(client, 1, 0, &published));
  REQUIRE(published.version == 1 && published.epoch == 1 && published.model_bytes == 56);

  CHECK(dw_offload_begin(client, 2, &offload));
  CHECK(dw_offload_abandon(offload, "changed my mind"));
  REQUIRE(dw_offload_ready(offload) == DW_ABORTED);
  dw_offload_destroy(offload);
  REQUIRE(dw_wait_published(client, 2, 0, NULL) == DW_ABORTED);
  REQUIRE(strstr(dw_last_error(), "changed my mind") != NULL);

  CHECK(dw_offload_begin(client, 3, &offload));
  write_matrix(offload, matrix, 1.5f);
  CHECK(dw_offload_mark_unchanged(offload, &scalar, 1));
  scalar = 2;
  REQUIRE(dw_offload_mark_unchanged(offload, &scalar, 1) == DW_INVALID_ARGUMENT);
  CHECK(dw_offload_ready(offload));
  dw_offload_destroy(offload);
  CHECK(dw_wait_published(client, 3, 5000, &published));
  REQUIRE(published.changed_elements == ROWS * COLUMNS);
  CHECK(dw_client_set_gone(client, gone_at_the_second, &asked));
  REQUIRE(dw_wait_published(client, 4, 0, NULL) == DW_CANCELLED && asked == 2);
  CHECK(dw_client_set_gone(client, NULL, NULL));
  CHECK(dw_wait_published(client, 3, 0, &published));
  dw_client_destroy(client);
  REQUIRE(dw_mapping_in_use(mapping) == 0);
  value = ((volatile char*)mapped)[mapped_bytes - 1]; /* it is mapped all the same */
  dw_mapping_destroy(mapping);
  return 0;
}
