/* A stand-in for libmlx5.so.1: says that the played devices are mlx5 (as on a host with ConnectX cards), and that they cannot do more. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

bool mlx5dv_is_supported(void *device) { return device != NULL; }
int mlx5dv_get_data_direct_sysfs_path(void *context, char *to, size_t size) {
  (void)context, (void)to, (void)size;
  return ENODEV;
}
void *mlx5dv_reg_dmabuf_mr(void) {
  errno = EOPNOTSUPP;
  return NULL;
}
int mlx5dv_query_device(void) { return EOPNOTSUPP; }
void *mlx5dv_create_qp(void) {
  errno = EOPNOTSUPP;
  return NULL;
}
