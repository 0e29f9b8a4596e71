/* A stand-in for libibverbs.so.1: plays RDMA devices for a real NCCL on a machine that has none.
 *
 * NCCL dlopens libibverbs.so.1 and asks for its functions by name and version; all it prints about RDMA (devices found, ports
 * skipped, calls that fail, completions with an error, events of a port) follows from what these functions answer. Writes are
 * carried to the peer process over a unix socket, so that a healthy stand-in moves real data and real collectives finish.
 *
 * Told by a file named in IBV_STANDIN, one order a line (# comments):
 *   device NAME [link=ib|eth] [state=N] [ports=N] [speed=N] [width=N]    in the order of ibv_get_device_list; state 4 is ACTIVE, 1 DOWN
 *   port NAME PORT state=N                                               a port that differs from its device
 *   gid NAME INDEX ADDRESS                                               an entry of every port's GID table, as inet_pton reads it
 *   fail CALL errno=N [device=NAME] [after=N] [state=N]                  CALL: open_device reg_mr create_cq create_qp modify_qp;
 *                                                                        `after` calls that work; `state` of modify_qp (1 INIT, 2 RTR, 3 RTS)
 *   complete status=N [vendor=N] [after=N]                               writes fail with that ibv_wc_status, after N that work
 *   event TYPE after=SECONDS [device=NAME] [port=N] [wait=N]             ibv_event_type, so long after the Nth write (default: the first)
 * IBV_STANDIN_SOCKETS: folder of the unix sockets, shared by the ranks.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova2

enum { MAX_DEVICES = 32, MAX_PORTS = 4, MAX_GIDS = 16, MAX_RULES = 32, RING = 16384, MAX_QPS = 4096 };

struct device {
  struct ibv_device device; /* first: NCCL holds a pointer to it */
  int ports, link, state[MAX_PORTS + 1], speed, width, number;
  int gids;
  union ibv_gid gid[MAX_GIDS];
};
struct context {
  struct ibv_context context;
  int event_write;
};
struct completions {
  struct ibv_cq cq;
  pthread_mutex_t lock;
  unsigned head, tail;
  struct ibv_wc ring[RING];
};
struct queue {
  struct ibv_qp qp;
  uint32_t peer;
  int socket, broken, port;
  struct ibv_ah_attr path;
  pthread_mutex_t lock;
  pthread_cond_t posted;
  unsigned head, tail;
  uint64_t waiting[RING];
};
struct rule {
  char call[24], device[IBV_SYSFS_NAME_MAX];
  int error, after, state, port, type, wait;
  double seconds;
};
struct head {
  uint32_t queue, opcode, with_imm, imm;
  uint64_t address, length;
};

static struct device devices[MAX_DEVICES];
static int device_count, loaded;
static struct rule rules[MAX_RULES];
static int rule_count;
static struct rule completion = {.error = 0, .after = 0};
static int completion_vendor;
static struct queue *queues[MAX_QPS];
static uint32_t queue_count, key_count;
static long writes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t listener;
static int listening;

static uint32_t process_part(void) { return ((uint32_t)getpid() & 0xfff) << 12; }

static double option(char *line, const char *name, double missing) {
  char *at = strstr(line, name);
  return at ? atof(at + strlen(name)) : missing;
}

static void option_text(char *line, const char *name, char *to, size_t size) {
  char *at = strstr(line, name);
  if (at == NULL) return;
  at += strlen(name);
  snprintf(to, size, "%.*s", (int)strcspn(at, " \t\n"), at);
}

static void load(void) {
  if (loaded++) return;
  const char *path = getenv("IBV_STANDIN");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[512], name[64];
  if (file == NULL) return;
  while (fgets(line, sizeof line, file)) {
    int number;
    char address[64];
    if (sscanf(line, "device %63s", name) == 1 && device_count < MAX_DEVICES) {
      struct device *d = &devices[device_count];
      snprintf(d->device.name, sizeof d->device.name, "%s", name);
      snprintf(d->device.dev_name, sizeof d->device.dev_name, "uverbs%d", device_count);
      d->device.node_type = IBV_NODE_CA;
      d->device.transport_type = IBV_TRANSPORT_IB;
      d->number = device_count++;
      d->ports = (int)option(line, "ports=", 1);
      d->link = strstr(line, "link=eth") ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
      for (int p = 1; p <= MAX_PORTS; p++) d->state[p] = (int)option(line, "state=", IBV_PORT_ACTIVE);
      d->speed = (int)option(line, "speed=", 128); /* NDR */
      d->width = (int)option(line, "width=", 2);   /* 4x */
    } else if (sscanf(line, "port %63s %d", name, &number) == 2) {
      for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].device.name, name) && number <= MAX_PORTS)
          devices[i].state[number] = (int)option(line, "state=", IBV_PORT_ACTIVE);
    } else if (sscanf(line, "gid %63s %d %63s", name, &number, address) == 3) {
      for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].device.name, name) && number < MAX_GIDS) {
          inet_pton(AF_INET6, address, devices[i].gid[number].raw);
          if (number >= devices[i].gids) devices[i].gids = number + 1;
        }
    } else if (sscanf(line, "fail %23s", name) == 1 && rule_count < MAX_RULES) {
      struct rule *r = &rules[rule_count++];
      snprintf(r->call, sizeof r->call, "%.23s", name);
      option_text(line, "device=", r->device, sizeof r->device);
      r->error = (int)option(line, "errno=", EIO);
      r->after = (int)option(line, "after=", 0);
      r->state = (int)option(line, "state=", -1);
    } else if (sscanf(line, "event %d", &number) == 1 && rule_count < MAX_RULES) {
      struct rule *r = &rules[rule_count++];
      snprintf(r->call, sizeof r->call, "event");
      option_text(line, "device=", r->device, sizeof r->device);
      r->type = number;
      r->seconds = option(line, "after=", 0);
      r->port = (int)option(line, "port=", 1);
      r->wait = (int)option(line, "wait=", 1);
    } else if (!strncmp(line, "complete", 8)) {
      completion.error = (int)option(line, "status=", IBV_WC_RETRY_EXC_ERR);
      completion.after = (int)option(line, "after=", 0);
      completion_vendor = (int)option(line, "vendor=", 129);
    }
  }
  fclose(file);
}

/* The errno with which a call is to fail now, 0 for none. */
static int failing(const char *call, const char *device, int state) {
  for (int i = 0; i < rule_count; i++) {
    struct rule *r = &rules[i];
    if (strcmp(r->call, call) || (r->device[0] && strcmp(r->device, device)) || (r->state >= 0 && r->state != state)) continue;
    if (__atomic_fetch_sub(&r->after, 1, __ATOMIC_SEQ_CST) <= 0) return r->error;
  }
  return 0;
}

static void push(struct ibv_cq *cq, struct ibv_wc *wc) {
  struct completions *c = (struct completions *)cq;
  pthread_mutex_lock(&c->lock);
  c->ring[c->head++ % RING] = *wc;
  pthread_mutex_unlock(&c->lock);
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc) {
  struct completions *c = (struct completions *)cq;
  int n = 0;
  pthread_mutex_lock(&c->lock);
  while (n < count && c->tail != c->head) wc[n++] = c->ring[c->tail++ % RING];
  pthread_mutex_unlock(&c->lock);
  return n;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited) {
  (void)cq, (void)solicited;
  return 0;
}

static int read_all(int fd, void *to, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t n = recv(fd, (char *)to + done, size - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return -1;
    done += (size_t)n;
  }
  return 0;
}

static int write_all(int fd, const void *from, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t n = send(fd, (const char *)from + done, size - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return -1;
    done += (size_t)n;
  }
  return 0;
}

/* One connection of a peer's queue: its writes land in this process's memory, in order. */
static void *receive(void *given) {
  int fd = (int)(intptr_t)given;
  struct head head;
  while (read_all(fd, &head, sizeof head) == 0) {
    if (head.length && read_all(fd, (void *)head.address, head.length)) break;
    if (!head.with_imm) continue;
    struct queue *q = queues[head.queue & 0xfff];
    if (q == NULL) continue;
    pthread_mutex_lock(&q->lock);
    while (q->tail == q->head) pthread_cond_wait(&q->posted, &q->lock); /* the card would answer "receiver not ready" */
    struct ibv_wc wc = {.wr_id = q->waiting[q->tail++ % RING]};
    pthread_mutex_unlock(&q->lock);
    wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.imm_data = head.imm;
    wc.byte_len = (uint32_t)head.length;
    wc.qp_num = q->qp.qp_num;
    push(q->qp.recv_cq, &wc);
  }
  close(fd);
  return NULL;
}

static void socket_address(struct sockaddr_un *to, uint32_t queue) {
  const char *folder = getenv("IBV_STANDIN_SOCKETS");
  to->sun_family = AF_UNIX;
  snprintf(to->sun_path, sizeof to->sun_path, "%s/qp.%u", folder ? folder : "/tmp", queue >> 12);
}

static void *listen_main(void *given) {
  for (;;) {
    int fd = accept((int)(intptr_t)given, NULL, NULL);
    pthread_t thread;
    if (fd < 0) return NULL;
    if (pthread_create(&thread, NULL, receive, (void *)(intptr_t)fd) == 0) pthread_detach(thread);
  }
}

static void listen_once(void) {
  struct sockaddr_un address;
  pthread_mutex_lock(&lock);
  if (!listening++) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socket_address(&address, process_part());
    unlink(address.sun_path);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 256)) perror("ibverbs stand-in: listen");
    else pthread_create(&listener, NULL, listen_main, (void *)(intptr_t)fd);
  }
  pthread_mutex_unlock(&lock);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  struct queue *q = (struct queue *)qp;
  (void)bad;
  pthread_mutex_lock(&q->lock);
  for (; wr; wr = wr->next) q->waiting[q->head++ % RING] = wr->wr_id;
  pthread_cond_broadcast(&q->posted);
  pthread_mutex_unlock(&q->lock);
  return 0;
}

static int connect_queue(struct queue *q) {
  struct sockaddr_un address;
  if (q->socket >= 0) return 0;
  q->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socket_address(&address, q->peer);
  return connect(q->socket, (struct sockaddr *)&address, sizeof address);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  struct queue *q = (struct queue *)qp;
  (void)bad;
  for (; wr; wr = wr->next) {
    struct ibv_wc wc = {.wr_id = wr->wr_id, .qp_num = qp->qp_num, .opcode = IBV_WC_RDMA_WRITE};
    long number = __atomic_fetch_add(&writes, 1, __ATOMIC_SEQ_CST);
    if (q->broken) {
      wc.status = IBV_WC_WR_FLUSH_ERR;
      wc.vendor_err = 249;
    } else if (completion.error && number >= completion.after) {
      wc.status = (enum ibv_wc_status)completion.error;
      wc.vendor_err = (uint32_t)completion_vendor;
    } else if (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
      fprintf(stderr, "ibverbs stand-in: opcode %d is not played\n", wr->opcode);
      wc.status = IBV_WC_LOC_QP_OP_ERR;
    } else {
      struct head head = {.queue = q->peer, .opcode = wr->opcode, .address = wr->wr.rdma.remote_addr};
      head.with_imm = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
      head.imm = wr->imm_data;
      for (int i = 0; i < wr->num_sge; i++) head.length += wr->sg_list[i].length;
      int bad_socket = connect_queue(q) || write_all(q->socket, &head, sizeof head);
      for (int i = 0; i < wr->num_sge && !bad_socket; i++)
        bad_socket = write_all(q->socket, (void *)wr->sg_list[i].addr, wr->sg_list[i].length);
      if (bad_socket) { /* the peer is gone: a card gives up after its retries */
        wc.status = IBV_WC_RETRY_EXC_ERR;
        wc.vendor_err = 129;
      }
      wc.byte_len = (uint32_t)head.length;
    }
    if (wc.status != IBV_WC_SUCCESS) q->broken = 1;
    if (wc.status != IBV_WC_SUCCESS || (wr->send_flags & IBV_SEND_SIGNALED)) push(qp->send_cq, &wc);
  }
  return 0;
}

static void *play_events(void *given) {
  struct context *c = given;
  for (int i = 0; i < rule_count; i++) {
    struct rule *r = &rules[i];
    if (strcmp(r->call, "event") || (r->device[0] && strcmp(r->device, c->context.device->name))) continue;
    while (__atomic_load_n(&writes, __ATOMIC_SEQ_CST) < r->wait) usleep(10000);
    usleep((useconds_t)(r->seconds * 1e6));
    struct ibv_async_event event = {.event_type = (enum ibv_event_type)r->type};
    if (r->type == IBV_EVENT_QP_FATAL || r->type == IBV_EVENT_QP_ACCESS_ERR || r->type == IBV_EVENT_QP_REQ_ERR) {
      event.element.qp = queues[0] ? &queues[0]->qp : NULL;
      if (event.element.qp == NULL) continue;
    } else event.element.port_num = r->port;
    if (write(c->event_write, &event, sizeof event) < 0) return NULL;
  }
  return NULL;
}

struct ibv_device **ibv_get_device_list(int *count) {
  load();
  struct ibv_device **list = calloc((size_t)device_count + 1, sizeof *list);
  for (int i = 0; i < device_count; i++) list[i] = &devices[i].device;
  if (count) *count = device_count;
  return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }

struct ibv_context *ibv_open_device(struct ibv_device *device) {
  int error = failing("open_device", device->name, -1), fds[2];
  if (error) {
    errno = error;
    return NULL;
  }
  struct context *c = calloc(1, sizeof *c);
  if (pipe(fds)) return NULL;
  c->context.device = device;
  c->context.async_fd = fds[0];
  c->context.cmd_fd = -1;
  c->context.num_comp_vectors = 1;
  c->event_write = fds[1];
  c->context.ops.poll_cq = poll_cq;
  c->context.ops.req_notify_cq = req_notify_cq;
  c->context.ops.post_send = post_send;
  c->context.ops.post_recv = post_recv;
  pthread_mutex_init(&c->context.mutex, NULL);
  for (int i = 0; i < rule_count; i++)
    if (!strcmp(rules[i].call, "event")) {
      pthread_t thread;
      if (pthread_create(&thread, NULL, play_events, c) == 0) pthread_detach(thread);
      break;
    }
  return &c->context;
}
int ibv_close_device(struct ibv_context *context) {
  (void)context;
  return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
  return read(context->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}
void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr) {
  struct device *d = (struct device *)context->device;
  memset(attr, 0, sizeof *attr);
  snprintf(attr->fw_ver, sizeof attr->fw_ver, "28.39.1002");
  attr->node_guid = attr->sys_image_guid = htobe64(0xa088c20300000000ULL + (uint64_t)d->number * 0x10000 + ((uint64_t)getpid() & 0xff));
  attr->vendor_id = 0x02c9;
  attr->vendor_part_id = 4129;
  attr->max_mr_size = ~0ULL;
  attr->max_qp = 131072;
  attr->max_qp_wr = 32768;
  attr->max_sge = 30;
  attr->max_cq = 16777216;
  attr->max_cqe = 4194303;
  attr->max_mr = 16777216;
  attr->phys_port_cnt = (uint8_t)d->ports;
  return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *given) {
  struct ibv_port_attr *attr = (struct ibv_port_attr *)given; /* only fields that the old form has too are written */
  struct device *d = (struct device *)context->device;
  if (port < 1 || port > d->ports) return EINVAL;
  attr->state = (enum ibv_port_state)d->state[port];
  attr->max_mtu = IBV_MTU_4096;
  attr->active_mtu = d->link == IBV_LINK_LAYER_ETHERNET ? IBV_MTU_1024 : IBV_MTU_4096;
  attr->gid_tbl_len = d->gids;
  attr->max_msg_sz = 1u << 30;
  attr->pkey_tbl_len = 128;
  attr->lid = d->link == IBV_LINK_LAYER_ETHERNET ? 0 : (uint16_t)(16 + d->number);
  attr->sm_lid = 1;
  attr->active_width = (uint8_t)d->width;
  attr->active_speed = (uint8_t)d->speed;
  attr->phys_state = attr->state == IBV_PORT_ACTIVE ? 5 : 3;
  attr->link_layer = (uint8_t)d->link;
  return 0;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid) {
  struct device *d = (struct device *)context->device;
  (void)port;
  if (index < 0 || index >= MAX_GIDS) return EINVAL;
  *gid = d->gid[index];
  return 0;
}
int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey) {
  (void)context, (void)port;
  *pkey = index ? 0 : htons(0xffff);
  return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  struct ibv_pd *pd = calloc(1, sizeof *pd);
  pd->context = context;
  return pd;
}
int ibv_dealloc_pd(struct ibv_pd *pd) {
  (void)pd;
  return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access) {
  int error = failing("reg_mr", pd->context->device->name, -1);
  (void)iova, (void)access;
  if (error) {
    errno = error;
    return NULL;
  }
  struct ibv_mr *mr = calloc(1, sizeof *mr);
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->lkey = mr->rkey = 0x1000 + __atomic_add_fetch(&key_count, 1, __ATOMIC_SEQ_CST);
  return mr;
}
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access) {
  return ibv_reg_mr_iova2(pd, address, length, (uint64_t)address, (unsigned)access);
}
int ibv_dereg_mr(struct ibv_mr *mr) {
  free(mr);
  return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *given, struct ibv_comp_channel *channel, int vector) {
  int error = failing("create_cq", context->device->name, -1);
  (void)vector;
  if (error) {
    errno = error;
    return NULL;
  }
  struct completions *c = calloc(1, sizeof *c);
  c->cq.context = context;
  c->cq.cq_context = given;
  c->cq.channel = channel;
  c->cq.cqe = cqe;
  pthread_mutex_init(&c->lock, NULL);
  return &c->cq;
}
int ibv_destroy_cq(struct ibv_cq *cq) {
  (void)cq; /* kept: a connection's thread may still hold it */
  return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  int error = failing("create_qp", pd->context->device->name, -1);
  if (error) {
    errno = error;
    return NULL;
  }
  listen_once();
  struct queue *q = calloc(1, sizeof *q);
  q->qp.context = pd->context;
  q->qp.qp_context = attr->qp_context;
  q->qp.pd = pd;
  q->qp.send_cq = attr->send_cq;
  q->qp.recv_cq = attr->recv_cq;
  q->qp.qp_type = attr->qp_type;
  q->qp.state = IBV_QPS_RESET;
  q->socket = -1;
  pthread_mutex_init(&q->lock, NULL);
  pthread_cond_init(&q->posted, NULL);
  pthread_mutex_lock(&lock);
  q->qp.qp_num = process_part() | queue_count;
  queues[queue_count++ & 0xfff] = q;
  pthread_mutex_unlock(&lock);
  return &q->qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
  struct queue *q = (struct queue *)qp;
  if (mask & IBV_QP_PORT) q->port = attr->port_num;
  if (mask & IBV_QP_AV) q->path = attr->ah_attr;
  int error = failing("modify_qp", qp->context->device->name, (int)attr->qp_state);
  if (error) return error;
  if (mask & IBV_QP_DEST_QPN) q->peer = attr->dest_qp_num;
  if (mask & IBV_QP_STATE) qp->state = attr->qp_state;
  return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
  struct queue *q = (struct queue *)qp;
  (void)mask, (void)init;
  memset(attr, 0, sizeof *attr);
  attr->qp_state = qp->state;
  attr->port_num = (uint8_t)q->port;
  attr->ah_attr = q->path;
  attr->dest_qp_num = q->peer;
  return 0;
}
int ibv_destroy_qp(struct ibv_qp *qp) {
  struct queue *q = (struct queue *)qp;
  if (q->socket >= 0) close(q->socket);
  q->socket = -1;
  q->broken = 1;
  return 0; /* kept: a connection's thread may still hold it */
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
  (void)qp;
  ece->vendor_id = 0x15b3;
  ece->options = 0x30000002;
  ece->comp_mask = 0;
  return 0;
}
int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
  (void)qp, (void)ece;
  return 0;
}
int ibv_fork_init(void) { return 0; }

/* As rdma-core's libibverbs 44 names them. */
const char *ibv_event_type_str(enum ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_CQ_ERR: return "CQ error";
    case IBV_EVENT_QP_FATAL: return "local work queue catastrophic error";
    case IBV_EVENT_QP_REQ_ERR: return "invalid request local work queue error";
    case IBV_EVENT_QP_ACCESS_ERR: return "local access violation work queue error";
    case IBV_EVENT_COMM_EST: return "communication established";
    case IBV_EVENT_DEVICE_FATAL: return "local catastrophic error";
    case IBV_EVENT_PORT_ACTIVE: return "port active";
    case IBV_EVENT_PORT_ERR: return "port error";
    case IBV_EVENT_LID_CHANGE: return "LID change";
    case IBV_EVENT_PKEY_CHANGE: return "P_Key change";
    case IBV_EVENT_SM_CHANGE: return "SM change";
    case IBV_EVENT_CLIENT_REREGISTER: return "client reregistration";
    case IBV_EVENT_GID_CHANGE: return "GID table change";
    default: return "unknown";
  }
}
