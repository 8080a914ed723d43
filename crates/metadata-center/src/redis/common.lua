-- Before each script of one cluster. KEYS[1] is how all keys of the cluster begin: mc1:{cluster}:
-- A script reads all it needs before its first write, and that write decides: Redis lets a script that has written go
-- on when memory runs out.

local N, P, T = KEYS[1] .. 'n', KEYS[1] .. 'p', KEYS[1] .. 't'
local COUNT = KEYS[1] .. 'c'
local LEASE, EPOCH, OVER = KEYS[1] .. 'lease', KEYS[1] .. 'e', KEYS[1] .. 'over'
local SUM, SEQ = KEYS[1] .. 's', KEYS[1] .. 'q'
local RESERVED_UNTIL, RESERVED = KEYS[1] .. 'v', KEYS[1] .. 'w'
local CREATED, UNOWNED = KEYS[1] .. 'old', KEYS[1] .. 'r:-'
local LOG = KEYS[1] .. 'k'
local SHARDS = 64

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Decimal texts of unsigned numbers, which may be larger than what a Lua number holds.
local function less(a, b)
  if #a ~= #b then
    return #a < #b
  end
  return a < b
end

local function charge_of(text)
  local endpoint, prefill = string.match(text, '^(.*)|(%d+)$')
  return endpoint, tonumber(prefill)
end

local changes, changed_requests = {}, 0

-- The endpoint has so many more requests and so much more prefill.
local function change(endpoint, requests, prefill)
  local sums = changes[endpoint]
  if not sums then
    sums = { 0, 0 }
    changes[endpoint] = sums
  end
  sums[1] = sums[1] + requests
  sums[2] = sums[2] + prefill
  changed_requests = changed_requests + requests
end

local function write_changes()
  for endpoint, sums in pairs(changes) do
    if sums[1] ~= 0 then
      redis.call('HINCRBY', N, endpoint, sums[1])
    end
    if sums[2] ~= 0 then
      redis.call('HINCRBY', P, endpoint, sums[2])
    end
    redis.call('HSET', T, endpoint, now)
  end
  if changed_requests ~= 0 then
    redis.call('INCRBY', COUNT, changed_requests)
  end
end

-- Whether so many more requests fit after the changes until now.
local function has_room(more, room)
  return more <= 0 or tonumber(redis.call('GET', COUNT) or 0) + changed_requests + more <= room
end

-- Whether these endpoints, each once, fit beside those that are there, and so many more ahead.
local function endpoints_fit(endpoints, limit, ahead)
  if #endpoints == 0 then
    return true
  end
  local missing = ahead or 0
  for _, requests in ipairs(redis.call('HMGET', N, unpack(endpoints))) do
    if not requests then
      missing = missing + 1
    end
  end
  return missing == 0 or redis.call('HLEN', N) + missing <= limit
end

-- Ends the owner-less charge with this text.
local function end_unowned(id, text)
  local endpoint, prefill = charge_of(text)
  redis.call('HDEL', UNOWNED, id)
  redis.call('ZREM', CREATED, id)
  change(endpoint, -1, -prefill)
end

-- The text of the owner-less charge; one that is over ends now.
local function find_unowned(id, expire_ms)
  local text = redis.call('HGET', UNOWNED, id)
  if text and tonumber(redis.call('ZSCORE', CREATED, id) or 0) + expire_ms <= now then
    end_unowned(id, text)
    return nil
  end
  return text or nil
end

local function end_reservation(id, text)
  local endpoint, prefill = charge_of(text)
  redis.call('HDEL', RESERVED, id)
  redis.call('ZREM', RESERVED_UNTIL, id)
  change(endpoint, -1, -prefill)
end

-- Forgets which batches came from an epoch of an instance.
local function forget_batches(instance, epoch)
  local owners = {}
  for shard = 0, SHARDS - 1 do
    owners[#owners + 1] = instance .. '@' .. epoch .. ':' .. shard
  end
  redis.call('HDEL', SEQ, unpack(owners))
end
