import time, os, json, subprocess, sys
t=time.monotonic()
print(json.dumps({"up": open("/proc/uptime").read()}))
def sh(c):
    t=time.monotonic()
    r=subprocess.run(c,shell=True,capture_output=True,text=True)
    print(json.dumps({"c":c,"rc":r.returncode,"out":r.stdout[-3000:],"err":r.stderr[-3000:],"t":round(time.monotonic()-t,2)}),flush=True)
for c in r'''ip link set lo up
ip link add d0 address 02:00:00:00:00:01 type veth peer name d1 address 02:00:00:00:00:02
ip addr add 192.0.2.1/24 dev d0; ip addr add 192.0.2.2/24 dev d1; ip link set d0 up; ip link set d1 up
sysctl -w net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.d0.rp_filter=0 net.ipv4.conf.d1.rp_filter=0 net.ipv4.conf.d0.accept_local=1 net.ipv4.conf.d1.accept_local=1
ip rule add pref 10 iif d0 lookup local; ip rule add pref 10 iif d1 lookup local; ip route add 192.0.2.2 dev d0 table 101; ip route add 192.0.2.1 dev d1 table 102; ip rule add pref 20 from 192.0.2.1 to 192.0.2.2 lookup 101;  ip rule add pref 20 from 192.0.2.2 to 192.0.2.1 lookup 102; ip rule add pref 30 lookup local; ip rule del pref 0; ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev d0; ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev d1; ip rule; ip route get 192.0.2.2 from 192.0.2.1
modprobe rdma_rxe; rdma link add rxe0 type rxe netdev d0;  rdma link add rxe1 type rxe netdev d1
rdma link; ls -l /dev/infiniband; cat /sys/class/infiniband/rxe*/ports/1/state
ibv_devinfo
cat /proc/net/dev; cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
(ib_write_bw -d rxe1 -x 1 -n 50 >/tmp/s.log 2>&1 &); sleep 1; timeout 20 ib_write_bw -d rxe0 -x 1 -n 50 192.0.2.2; cat /tmp/s.log
cat /proc/net/dev; cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
(ib_write_bw -d rxe0 -x 1 -n 50 >/tmp/s.log 2>&1 &); sleep 1; timeout 20 ib_write_bw -d rxe0 -x 1 -n 50 192.0.2.1; cat /tmp/s.log
cat /proc/net/dev; cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
python3 -c "import diag.hub"
python3 -c "import diag.sidecar"
python3 -m diag doctor
cat /sys/class/infiniband/rxe0/ports/1/gids/1; cat /proc/cpuinfo | grep -c processor; free -m; df /'''.splitlines(): sh(c)
