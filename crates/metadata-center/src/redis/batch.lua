-- One part of what an owner reports: charges that a full batch leaves out, then deletes, then puts as id, endpoint,
-- prefill. The last part stores the number of the batch; each looks for room for those ahead.
local instance, epoch, shard, seq = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local is_full, is_last, lease_ms = ARGV[5] == '1', ARGV[6] == '1', tonumber(ARGV[7])
local room, max_leases, max_instances = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local max_endpoints, left_out, deletes = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local requests_ahead, endpoints_ahead = tonumber(ARGV[14]), tonumber(ARGV[15])
local FIRST = 16
local owner = instance .. '@' .. epoch .. ':' .. shard
local charges = KEYS[1] .. 'r:' .. owner

local current = redis.call('HGET', EPOCH, instance)
if current and less(epoch, current) then
  return { 'stale-epoch', current }
end
local deadline = current and redis.call('ZSCORE', LEASE, instance .. '@' .. current)
if deadline and tonumber(deadline) <= now then
  return { 'over', current }
end
local is_live = deadline and current == epoch
if not is_live and not is_full then
  return { 'lease-lost' }
end
if deadline and not is_live then
  return { 'replaces', current }
end
if current == epoch then
  local last = redis.call('HGET', SEQ, owner)
  if last == seq and not is_live then
    -- Its reply was lost, and then its charges.
    return { 'lease-lost' }
  end
  if last and not less(last, seq) then
    return { 'stale-seq', last }
  end
end
if not is_live then
  if redis.call('ZCARD', LEASE) >= max_leases then
    return { 'limit-instances' }
  end
  if not current and redis.call('HLEN', EPOCH) >= max_instances then
    -- One whose lease is over gives way.
    local gone = redis.call('ZRANGE', OVER, 0, 0)[1]
    if not gone then
      return { 'limit-instances' }
    end
    redis.call('HSET', EPOCH, instance, epoch)
    forget_batches(gone, redis.call('HGET', EPOCH, gone) or '')
    redis.call('HDEL', EPOCH, gone)
    redis.call('ZREM', OVER, gone)
  end
  redis.call('HSET', EPOCH, instance, epoch)
  redis.call('ZREM', OVER, instance)
  if current and current ~= epoch then
    forget_batches(instance, current)
  end
end
-- Also where the batch does not fit: what the owner has stays.
redis.call('ZADD', LEASE, now + lease_ms, instance .. '@' .. epoch)

local sum = 0

-- The charges and the reservations of these requests.
local function look_up(ids)
  if #ids == 0 then
    return {}, {}
  end
  local reserved = {}
  if redis.call('HLEN', RESERVED) > 0 then
    reserved = redis.call('HMGET', RESERVED, unpack(ids))
  end
  return redis.call('HMGET', charges, unpack(ids)), reserved
end

local function take_off(text)
  local endpoint, prefill = charge_of(text)
  change(endpoint, -1, -prefill)
  sum = sum - prefill
end

local function finish()
  -- Also by 0: the field says that there is such an owner.
  redis.call('HINCRBY', SUM, owner, sum)
  write_changes()
end

-- What the batch ends is ended whether or not its puts fit.
local gone = {}
for at = FIRST, FIRST + left_out + deletes - 1 do
  gone[#gone + 1] = ARGV[at]
end
local before, reserved = look_up(gone)
for at, id in ipairs(gone) do
  if before[at] then
    take_off(before[at])
  end
  if reserved[at] and at > left_out then
    end_reservation(id, reserved[at])
  end
end
if #gone > 0 then
  redis.call('HDEL', charges, unpack(gone))
end

local ids, texts, endpoints, seen = {}, {}, {}, {}
for at = FIRST + left_out + deletes, #ARGV, 3 do
  local endpoint = ARGV[at + 1]
  ids[#ids + 1] = ARGV[at]
  texts[#texts + 1] = endpoint .. '|' .. ARGV[at + 2]
  if not seen[endpoint] then
    seen[endpoint] = true
    endpoints[#endpoints + 1] = endpoint
  end
end
before, reserved = look_up(ids)
local more = 0
for at = 1, #ids do
  more = more + 1 - (before[at] and 1 or 0) - (reserved[at] and 1 or 0)
end
-- A part without puts goes before what it makes room for.
if #ids == 0 then
  requests_ahead, endpoints_ahead = 0, 0
end
if not endpoints_fit(endpoints, max_endpoints, endpoints_ahead) then
  finish()
  return { 'limit-endpoints' }
end
if not has_room(more + requests_ahead, room) then
  finish()
  return { 'limit-requests' }
end

local set = {}
for at, id in ipairs(ids) do
  if before[at] ~= texts[at] then
    if before[at] then
      take_off(before[at])
    end
    local endpoint, prefill = charge_of(texts[at])
    change(endpoint, 1, prefill)
    sum = sum + prefill
    set[#set + 1] = id
    set[#set + 1] = texts[at]
  end
  if reserved[at] then
    end_reservation(id, reserved[at])
  end
end
if #set > 0 then
  redis.call('HSET', charges, unpack(set))
end
if is_last then
  redis.call('HSET', SEQ, owner, seq)
end
finish()
return { 'applied', tostring(redis.call('HLEN', charges)), redis.call('HGET', SUM, owner) }
