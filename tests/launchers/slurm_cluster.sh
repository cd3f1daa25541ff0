#!/usr/bin/env bash
# A throw-away Slurm cluster of virtual nodes n1, n2, ... on this machine, for the tests. Needs root and the Debian packages
# slurm-wlm and munge, neither systemd nor control groups.
#
#   slurm_cluster.sh up FOLDER [loopback|netns] [NODES] [GPUS]   starts munged, slurmctld and a slurmd per node, waits until all idle
#   slurm_cluster.sh down FOLDER                                 ends what `up` started with this folder, and nothing else
#
# loopback  the nodes share this machine's network and name; "n1" does not resolve.
# netns     each node has a network and a host name of its own; n1, n2, ... are 10.213.X.1, .2, ... on a bridge that leads nowhere.
# GPUS      per node, by default 0. They are device nodes like /dev/null: only Slurm takes them for GPUs.
# Clients need SLURM_CONF=FOLDER/slurm.conf. Everything written is below FOLDER.
set -euo pipefail

readonly cpus_per_node=16 # promised to the scheduler, not asked of the machine

say() { printf 'slurm_cluster: %s\n' "$*" >&2; }

running() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }

# Nobody answers there.
is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

free_ports() { # COUNT: the first of so many ports in a row that nobody listens on
  local base port
  for _ in $(seq 50); do
    base=$((11000 + RANDOM % 8000))
    for port in $(seq "$base" $((base + $1 - 1))); do
      is_free "$port" || continue 2
    done
    echo "$base"
    return
  done
  say "found no $1 free ports"
  return 1
}

make_networks() {
  local i
  ip link add "$bridge" type bridge
  ip addr add "$net.254/24" dev "$bridge"
  ip link set "$bridge" up
  { echo "127.0.0.1 localhost"; echo "$net.254 $host"; } >"$folder/hosts"
  for i in $(seq "$nodes"); do
    echo "$net.$i n$i" >>"$folder/hosts"
    ip netns add "$prefix-n$i"
    ip link add "$prefix-v$i" type veth peer name eth0 netns "$prefix-n$i"
    ip link set "$prefix-v$i" master "$bridge" up
    ip -n "$prefix-n$i" addr add "$net.$i/24" dev eth0
    ip -n "$prefix-n$i" link set eth0 up
    ip -n "$prefix-n$i" link set lo up
  done
}

# A plain file is not taken for a GPU.
make_gpus() {
  local i
  for i in $(seq 0 $((gpus - 1))); do mknod "$folder/gpu$i" c 1 3; done
  echo "Name=gpu File=$folder/gpu[0-$((gpus - 1))]" >"$folder/gres.conf"
  echo "GresTypes=gpu" >>"$folder/slurm.conf"
}

write_configuration() {
  local controller=127.0.0.1 base i resources="CPUs=$cpus_per_node RealMemory=1000"
  [ "$mode" = loopback ] || controller=$net.254
  base=$(free_ports $((nodes + 1)))
  mkdir -p "$folder"/{state,log,munge}
  for i in $(seq "$nodes"); do mkdir -p "$folder/spool/n$i"; done
  chmod 755 "$folder" # munged refuses a folder that others can write to
  chmod 700 "$folder/state"
  (umask 077 && head -c 1024 /dev/urandom >"$folder/munge/munge.key")
  echo 'CgroupPlugin=cgroup/v1' >"$folder/cgroup.conf" # nothing below uses it, but 22.05 knows no way to say so
  cat >"$folder/slurm.conf" <<EOF
ClusterName=test
SlurmctldHost=$host($controller)
SlurmctldPort=$base
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/munge.sock
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=5  # sbatch --wait asks every 2 s then, and not after 2, 8 and 32
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
EOF
  if [ "$gpus" -gt 0 ]; then
    make_gpus
    resources+=" Gres=gpu:$gpus"
  fi
  for i in $(seq "$nodes"); do
    if [ "$mode" = netns ]; then
      echo "NodeName=n$i NodeAddr=$net.$i Port=$((base + i)) $resources"
    else
      echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((base + i)) $resources"
    fi
  done >>"$folder/slurm.conf"
  if [ "$mode" = loopback ]; then
    echo "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny" >>"$folder/slurm.conf" # this machine only
  fi
}

start_node() {
  if [ "$mode" = netns ]; then
    ip netns exec "$prefix-n$1" unshare --uts --mount bash -c \
      "hostname n$1 && mount --bind '$folder/hosts' /etc/hosts && exec slurmd -N n$1"
  else
    slurmd -N "n$1"
  fi
}

up() {
  local i
  mkdir -p "$folder"
  printf 'mode=%s\nnodes=%s\nprefix=%s\nnet=%s\n' "$mode" "$nodes" "$prefix" "$net" >"$folder/cluster"
  [ "$mode" = loopback ] || make_networks
  write_configuration
  munged --force --key-file="$folder/munge/munge.key" --socket="$folder/munge/munge.sock" \
    --pid-file="$folder/munge/munged.pid" --log-file="$folder/log/munged.log" --seed-file="$folder/munge/munged.seed" \
    2>>"$folder/log/start.log"
  slurmctld -c 2>>"$folder/log/start.log"
  for i in $(seq "$nodes"); do start_node "$i" 2>>"$folder/log/start.log"; done
  for _ in $(seq 150); do
    if [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)" = "$nodes" ]; then
      return
    fi
    sleep 0.2
  done
  say "the nodes did not come up"
  tail -n 20 "$folder"/log/* >&2
  return 1
}

# Ends these processes, all at the same time.
stop() { # PIDFILE...
  local file pid pids=()
  for file in "$@"; do
    ! running "$file" || pids+=("$(cat "$file")")
  done
  [ ${#pids[@]} -gt 0 ] || return 0
  kill "${pids[@]}"
  for _ in $(seq 50); do
    for pid in "${pids[@]}"; do
      kill -0 "$pid" 2>/dev/null && sleep 0.1 && continue 2
    done
    return 0
  done
  kill -9 "${pids[@]}" 2>/dev/null || true
}

down() {
  local i
  [ -e "$folder/cluster" ] || return 0
  # shellcheck source=/dev/null
  source "$folder/cluster"
  if running "$folder/slurmctld.pid"; then
    timeout 10 scancel --state=RUNNING --signal=KILL --user=root 2>/dev/null || true
    timeout 10 scancel --user=root 2>/dev/null || true
    for _ in $(seq 50); do  # a step that ends after the daemons would wait for them
      [ -n "$(timeout 5 squeue --noheader 2>/dev/null)" ] || break
      sleep 0.1
    done
  fi
  stop "$folder"/slurmd-*.pid "$folder/slurmctld.pid" "$folder/munge/munged.pid"
  if [ "$mode" = netns ]; then
    for i in $(seq "$nodes"); do ip netns del "$prefix-n$i" 2>/dev/null || true; done
    ip link del "${prefix}-br" 2>/dev/null || true
  fi
  rm -f "$folder/cluster"
}

folder=$(realpath -m "${2:?usage: $0 up|down FOLDER [loopback|netns] [NODES] [GPUS]}")
mode=${3:-loopback}
nodes=${4:-2}
gpus=${5:-0}
host=$(hostname -s)
prefix=ls$(($$ % 100000)) # names of interfaces have 15 characters
bridge=$prefix-br
net=10.213.$(($$ % 250))
export SLURM_CONF=$folder/slurm.conf
case "$1" in
  up) up ;;
  down) down ;;
  *) say "up or down?" && exit 2 ;;
esac
