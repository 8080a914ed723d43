-- Ends the lease of an instance if it is over, or with `force` if it is of this epoch or an earlier one: frees its
-- charges, up to 512 at a time. Says how many were freed, whether nothing is left to do, whether that ended a lease.
local instance, epoch, force = ARGV[1], ARGV[2], ARGV[3] == '1'
local MOST = 512

local current = redis.call('HGET', EPOCH, instance)
local deadline = current and redis.call('ZSCORE', LEASE, instance .. '@' .. current)
if not deadline then
  return { 0, 1, 0 }
end
local is_over = tonumber(deadline) <= now
if force and less(epoch, current) or not force and not is_over then
  return { 0, 1, 0 }
end
local owners = {}
for shard = 0, SHARDS - 1 do
  owners[#owners + 1] = instance .. '@' .. current .. ':' .. shard
end
local freed, left = 0, false
for at, sum in ipairs(redis.call('HMGET', SUM, unpack(owners))) do
  local charges, cursor = KEYS[1] .. 'r:' .. owners[at], '0'
  while sum and freed < MOST do
    local step = redis.call('HSCAN', charges, cursor, 'COUNT', MOST)
    local ids = {}
    for pair = 1, #step[2], 2 do
      ids[#ids + 1] = step[2][pair]
      local endpoint, prefill = charge_of(step[2][pair + 1])
      change(endpoint, -1, -prefill)
    end
    freed = freed + #ids
    if #ids > 0 then
      redis.call('HDEL', charges, unpack(ids))
    end
    cursor = step[1]
    if cursor == '0' then
      break
    end
  end
  if sum and redis.call('EXISTS', charges) == 0 then
    redis.call('HDEL', SUM, owners[at])
  elseif sum then
    left = true
  end
end
if not left then
  redis.call('ZREM', LEASE, instance .. '@' .. current)
  redis.call('ZADD', OVER, deadline, instance)
elseif not is_over then
  -- Nobody adds to it between the steps.
  redis.call('ZADD', LEASE, now, instance .. '@' .. current)
end
write_changes()
return { freed, left and 0 or 1, left and 0 or 1 }
